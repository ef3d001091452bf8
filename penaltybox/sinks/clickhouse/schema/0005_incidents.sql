-- Who is behind an address or a device, how penalties go on, who collides with which limit.

-- Shared addresses: by = 'ip', 'prefix' (/24, /48) or 'asn' (attrs.asn). N_eff = 1/sum(p^2) over the established users'
-- shares of their requests. Attributable: no user there exceeded a user limit, and N_eff >= 3.
-- Collateral: of the users denied there, the share that stayed within their own limit.
CREATE OR REPLACE VIEW nat AS
WITH 1.959963984540054 AS z
SELECT p.place AS place, max(p.prefix) AS ip_prefix, sum(p.weight) AS requests,
       countIf(p.user != '') AS users, countIf(p.is_established) AS established_users,
       if(established_users = 0, 0, pow(sumIf(p.weight, p.is_established), 2) / sumIf(p.weight * p.weight, p.is_established)) AS n_eff,
       countIf(p.is_over) AS users_over_limit, max(e.ip_episodes) AS ip_episodes,
       users_over_limit = 0 AND n_eff >= 3 AS nat_attributable,
       countIf(p.denied AND p.user != '') AS denied_users,
       countIf(p.denied AND p.user != '' AND NOT p.is_over) AS denied_within_limit,
       multiIf(denied_users < 30, 'insufficient', denied_users < 100, 'report only', 'actionable') AS status,
       if(denied_users < 30, NULL, denied_within_limit / denied_users) AS collateral,
       if(denied_users < 30, NULL, greatest(0, (collateral + z * z / (2 * denied_users) - z * sqrt(
           collateral * (1 - collateral) / denied_users + z * z / (4 * denied_users * denied_users))) / (1 + z * z / denied_users)))
           AS collateral_low,
       if(denied_users < 30, NULL, least(1, (collateral + z * z / (2 * denied_users) + z * sqrt(
           collateral * (1 - collateral) / denied_users + z * z / (4 * denied_users * denied_users))) / (1 + z * z / denied_users)))
           AS collateral_high
FROM
(
    SELECT multiIf({by:String} = 'ip', ip, {by:String} = 'prefix', s.ip_prefix, s.asn) AS place,
           user, max(s.ip_prefix) AS prefix, sum(s.requests) AS weight,
           user != '' AND max(s.established) AS is_established,
           max(s.enforced AND s.action IN ('challenge', 'deny', 'shadow')) AS denied,
           user != '' AND user IN
           (
               SELECT user FROM sightings(from = {from:DateTime64(3, 'UTC')}, to = {to:DateTime64(3, 'UTC')}) WHERE over
               UNION ALL
               SELECT substring(subject, 6) FROM penalties FINAL
               WHERE dimension = 'user' AND NOT shadow AND origin = 'rule' AND action IN ('challenge', 'deny')
                 AND ts < {to:DateTime64(3, 'UTC')} AND (isNull(until) OR until >= {from:DateTime64(3, 'UTC')})
           ) AS is_over
    FROM sightings(from = {from:DateTime64(3, 'UTC')}, to = {to:DateTime64(3, 'UTC')}) AS s
    WHERE place != ''
    GROUP BY place, user
) AS p
LEFT JOIN
(
    SELECT place, count() AS ip_episodes
    FROM
    (
        SELECT subject FROM episodes(from = {from:DateTime64(3, 'UTC')}, to = {to:DateTime64(3, 'UTC')}) WHERE dimension = 'ip'
    ) AS limited
    INNER JOIN
    (
        SELECT DISTINCT concat('ip:', ip) AS subject,
               multiIf({by:String} = 'ip', ip, {by:String} = 'prefix', ip_prefix, asn) AS place
        FROM sightings(from = {from:DateTime64(3, 'UTC')}, to = {to:DateTime64(3, 'UTC')}) WHERE ip != ''
    ) AS seen ON limited.subject = seen.subject
    GROUP BY place
) AS e ON p.place = e.place
GROUP BY p.place
HAVING ip_episodes > 0 OR denied_users > 0
ORDER BY denied_within_limit DESC, place;

-- False positives by shared address: of the IP episodes of each network (/24, /48), how many are its size's fault. `prefix`
-- is a CIDR block that a network must lie in, '' for all of them; hashed addresses have no network.
CREATE OR REPLACE VIEW nat_false_positives AS
SELECT * EXCEPT (r)
FROM
(
WITH 1.959963984540054 AS z
SELECT ip_prefix AS network, count() AS addresses, sum(n.users) AS users, sum(n.established_users) AS established_users,
       max(n.n_eff) AS largest_n_eff, sum(n.ip_episodes) AS ip_episodes,
       sumIf(n.ip_episodes, n.nat_attributable) AS nat_episodes,
       sum(n.denied_users) AS denied_users, sum(n.denied_within_limit) AS denied_within_limit,
       multiIf(ip_episodes < 30, 'insufficient', ip_episodes < 100, 'report only', 'actionable') AS status,
       nat_episodes / greatest(ip_episodes, 1) AS r,
       if(ip_episodes < 30, NULL, r) AS nat_rate,
       if(ip_episodes < 30, NULL, greatest(0, (r + z * z / (2 * ip_episodes) - z * sqrt(r * (1 - r) / ip_episodes
           + z * z / (4 * ip_episodes * ip_episodes))) / (1 + z * z / ip_episodes))) AS nat_rate_low,
       if(ip_episodes < 30, NULL, least(1, (r + z * z / (2 * ip_episodes) + z * sqrt(r * (1 - r) / ip_episodes
           + z * z / (4 * ip_episodes * ip_episodes))) / (1 + z * z / ip_episodes))) AS nat_rate_high,
       arraySlice(arraySort(groupArrayIf(n.place, n.nat_attributable)), 1, 10) AS attributable_addresses
FROM nat(from = {from:DateTime64(3, 'UTC')}, to = {to:DateTime64(3, 'UTC')}, by = 'ip') AS n
WHERE ip_prefix != '' AND ({prefix:String} = '' OR isIPAddressInRange(splitByChar('/', ip_prefix)[1],
    if({prefix:String} = '', '0.0.0.0/0', {prefix:String})))
GROUP BY network
)
ORDER BY nat_episodes DESC, ip_episodes DESC, network;

-- Addresses that several users share, whether anybody was refused there or not.
CREATE OR REPLACE VIEW shared_ips AS
SELECT ip, any(prefix) AS ip_prefix, count() AS users, countIf(u.established) AS established_users,
       if(established_users = 0, 0, pow(sumIf(u.requests, u.established), 2) / sumIf(u.requests * u.requests, u.established)) AS n_eff,
       sum(u.requests) AS requests, sum(u.refused) AS refused,
       countIf(u.refused > 0) AS refused_users, countIf(u.over) AS users_over_limit,
       min(u.first_at) AS first_at, max(u.last_at) AS last_at
FROM
(
    SELECT ip, user, any(s.ip_prefix) AS prefix, max(s.established) AS established, max(s.over) AS over,
           sum(s.requests) AS requests,
           sumIf(s.denials, s.enforced AND s.action IN ('challenge', 'deny', 'shadow')) AS refused,
           min(s.first_at) AS first_at, max(s.last_at) AS last_at
    FROM sightings(from = {from:DateTime64(3, 'UTC')}, to = {to:DateTime64(3, 'UTC')}) AS s
    WHERE ip != '' AND user != ''
    GROUP BY ip, user
) AS u
GROUP BY ip
HAVING users > 1
ORDER BY users DESC, ip;

-- Devices and addresses with several accounts of which few are established.
CREATE OR REPLACE VIEW account_farms AS
SELECT u.dimension AS dimension, u.subject AS subject, count() AS accounts, countIf(u.established) AS established_accounts,
       established_accounts / accounts AS established_share,
       countIf(l.abusive) AS abusive_accounts, countIf(NOT l.abusive AND l.legitimate > 0) AS legitimate_accounts,
       sum(u.requests) AS requests, sum(u.refused) AS refused, max(p.penalties) AS penalties,
       min(u.first_at) AS first_at, max(u.last_at) AS last_at
FROM
(
    SELECT place.1 AS dimension, concat(place.1, ':', place.2) AS subject, user, max(s.established) AS established,
           sum(s.requests) AS requests,
           sumIf(s.denials, s.enforced AND s.action IN ('challenge', 'deny', 'shadow')) AS refused,
           min(s.first_at) AS first_at, max(s.last_at) AS last_at
    FROM sightings(from = {from:DateTime64(3, 'UTC')}, to = {to:DateTime64(3, 'UTC')}) AS s
    ARRAY JOIN [('device', s.device), ('ip', s.ip)] AS place
    WHERE user != '' AND place.2 != ''
    GROUP BY dimension, subject, user
) AS u
LEFT JOIN
(
    SELECT subject, abusive, legitimate
    FROM subject_labels(from = {from:DateTime64(3, 'UTC')}, as_of = now64(3, 'UTC'), matures_s = -1)
    WHERE startsWith(subject, 'user:')
) AS l ON l.subject = concat('user:', u.user)
LEFT JOIN
(
    SELECT subject, count() AS penalties FROM penalties FINAL
    WHERE ts >= {from:DateTime64(3, 'UTC')} AND ts < {to:DateTime64(3, 'UTC')} AND NOT shadow AND action != 'lift'
    GROUP BY subject
) AS p ON p.subject = u.subject
GROUP BY u.dimension, u.subject
HAVING accounts >= 4 AND established_share < 0.25
ORDER BY accounts DESC, subject;

-- The way up the ladder: how many subjects reached a rung, and how many of them went on to a higher one afterwards.
CREATE OR REPLACE VIEW penalty_funnel AS
SELECT dimension, rung, min(s.height_ms) AS height_ms, any(s.what) AS action,
       sum(s.times) AS penalties, count() AS subjects,
       countIf(t.highest_ms > s.height_ms) AS climbed, climbed / subjects AS climbed_share,
       countIf(s.times > 1) AS again, sum(s.late_ones) AS late_ones
FROM
(
    SELECT dimension, subject, if(action = 'challenge', 'challenge', toString(to_rung)) AS rung, any(p.action) AS what,
           max(multiIf(action = 'challenge', -1, action = 'warn', 0, ifNull(to_ms, 1000000000000000))) AS height_ms,
           count() AS times, countIf(late) AS late_ones
    FROM penalties AS p FINAL
    WHERE ts >= {from:DateTime64(3, 'UTC')} AND ts < {to:DateTime64(3, 'UTC')} AND NOT shadow
      AND action IN ('challenge', 'warn', 'deny')
    GROUP BY dimension, subject, rung
) AS s
INNER JOIN
(
    SELECT subject, max(multiIf(action = 'challenge', -1, action = 'warn', 0, ifNull(to_ms, 1000000000000000))) AS highest_ms
    FROM penalties FINAL
    WHERE ts >= {from:DateTime64(3, 'UTC')} AND ts < {to:DateTime64(3, 'UTC')} AND NOT shadow
      AND action IN ('challenge', 'warn', 'deny')
    GROUP BY subject
) AS t ON s.subject = t.subject
GROUP BY dimension, rung
ORDER BY dimension, height_ms, rung;

-- Who collides with which limit: abusers or normal customers. `legitimate` and `abusive` are subjects by their labels.
CREATE OR REPLACE VIEW limit_pressure AS
SELECT * EXCEPT (q)
FROM
(
WITH 1.959963984540054 AS z
SELECT scenario, limit_name, dimension, count() AS subjects, sum(d.denials) AS denials,
       sum(d.established) / denials AS established_share, max(d.denials) / denials AS largest_share,
       quantileExact(0.5)(d.denials) AS median_denials,
       countIf(l.abusive OR l.good > 0) AS labelled, sum(l.good) AS legitimate, countIf(l.abusive) AS abusive,
       if(labelled > 0, legitimate / labelled, 0) AS q,
       if(labelled < 30, NULL, q) AS legitimate_share,
       if(labelled < 30, NULL, greatest(0, (q + z * z / (2 * labelled) - z * sqrt(q * (1 - q) / labelled
           + z * z / (4 * labelled * labelled))) / (1 + z * z / labelled))) AS legitimate_low,
       if(labelled < 30, NULL, least(1, (q + z * z / (2 * labelled) + z * sqrt(q * (1 - q) / labelled
           + z * z / (4 * labelled * labelled))) / (1 + z * z / labelled))) AS legitimate_high,
       multiIf(labelled < 30, 'insufficient', assumeNotNull(legitimate_low) > 0.5, 'normal customers',
           assumeNotNull(legitimate_high) < 0.5, 'abusers', 'both') AS who
FROM
(
    SELECT scenario, limit_name, dimension, subject, sum(x.denials) AS denials, sum(x.established) AS established
    FROM denied_subjects(from = {from:DateTime64(3, 'UTC')}, to = {to:DateTime64(3, 'UTC')}) AS x
    WHERE enforced AND reason IN ('over_limit', 'local_fallback') AND limit_name != ''
    GROUP BY scenario, limit_name, dimension, subject
) AS d
LEFT JOIN
(
    SELECT subject, abusive, if(abusive, 0, 1 - arrayProduct(arrayPushBack(arrayMap(k -> 1 - k.2,
               arrayDistinct(arrayMap(k -> (k.1, k.3), labels))), 1))) AS good
    FROM subject_labels(from = {from:DateTime64(3, 'UTC')}, as_of = now64(3, 'UTC'), matures_s = -1)
) AS l ON l.subject = d.subject
GROUP BY scenario, limit_name, dimension
)
ORDER BY denials DESC, scenario, limit_name;

-- Before and after an instant, e.g. a policy change: the share of IP episodes among all episodes of limits and rules. One
-- that spans the instant is in both, each time with the part that lies there.
CREATE OR REPLACE VIEW blocks_by_ip_share AS
SELECT * EXCEPT (q)
FROM
(
WITH 1.959963984540054 AS z
SELECT period, count() AS episodes, countIf(dimension = 'ip') AS ip_episodes,
       sum(e.denials) AS denials, sumIf(e.denials, dimension = 'ip') AS ip_denials,
       multiIf(episodes < 30, 'insufficient', episodes < 100, 'report only', 'actionable') AS status,
       ip_episodes / episodes AS q,
       if(episodes < 30, NULL, q) AS ip_share,
       if(episodes < 30, NULL, greatest(0, (q + z * z / (2 * episodes) - z * sqrt(q * (1 - q) / episodes
           + z * z / (4 * episodes * episodes))) / (1 + z * z / episodes))) AS ip_share_low,
       if(episodes < 30, NULL, least(1, (q + z * z / (2 * episodes) + z * sqrt(q * (1 - q) / episodes
           + z * z / (4 * episodes * episodes))) / (1 + z * z / episodes))) AS ip_share_high
FROM
(
    SELECT 'before' AS period, dimension, denials
    FROM episodes(from = {from:DateTime64(3, 'UTC')}, to = {change:DateTime64(3, 'UTC')})
    UNION ALL
    SELECT 'after', dimension, denials
    FROM episodes(from = {change:DateTime64(3, 'UTC')}, to = {to:DateTime64(3, 'UTC')})
) AS e
GROUP BY period
)
ORDER BY period DESC;

-- When a policy version was first seen to punish anybody: for notes in charts.
CREATE OR REPLACE VIEW policy_versions AS
SELECT policy_version, min(p.ts) AS first_at, max(p.ts) AS last_at, count() AS penalties
FROM penalties AS p FINAL
WHERE ts >= {from:DateTime64(3, 'UTC')} AND ts < {to:DateTime64(3, 'UTC')} AND policy_version != ''
GROUP BY policy_version
ORDER BY first_at, policy_version;

-- What a block had to hold off: refusals by the blocklist of a subject, counted for its latest block before them. Times of
-- refusals are known to ten minutes per combination of subjects; who has two blocks in them counts for the later one.
CREATE OR REPLACE VIEW hits_per_block AS
SELECT b.dimension AS dimension, b.rule AS rule, b.rung AS rung, b.action AS action,
       count() AS blocks, sum(h.hits) AS hits, hits / blocks AS hits_per_block,
       quantileExact(0.5)(h.hits) AS median_hits, countIf(h.hits = 0) AS idle_blocks
FROM
(
    SELECT id, toString(dimension) AS dimension, toString(rule) AS rule, toString(to_rung) AS rung, toString(action) AS action
    FROM penalties FINAL
    WHERE ts >= {from:DateTime64(3, 'UTC')} AND ts < {to:DateTime64(3, 'UTC')} AND NOT shadow AND action IN ('deny', 'challenge')
) AS b
LEFT JOIN
(
    SELECT id, sum(s.denials) AS hits
    FROM
    (
        SELECT arrayJoin(arrayConcat(
                   if(user = '', [], [concat('user:', user)]), if(device = '', [], [concat('device:', device)]),
                   if(ip = '', [], [concat('ip:', ip)]), if(api_key = '', [], [concat('api_key:', api_key)]),
                   arrayMap((k, v) -> concat(k, ':', v), mapKeys(others), mapValues(others)))) AS subject,
               first_at, last_at, denials
        FROM sightings(from = {from:DateTime64(3, 'UTC')}, to = {to:DateTime64(3, 'UTC')})
        WHERE enforced AND reason IN ('blocklist', 'challenged')
    ) AS s
    ASOF INNER JOIN
    (
        SELECT subject, ts, id, ifNull(until, toDateTime64('2299-01-01 00:00:00', 3, 'UTC')) AS ends
        FROM penalties FINAL
        WHERE ts >= {from:DateTime64(3, 'UTC')} AND ts < {to:DateTime64(3, 'UTC')} AND NOT shadow AND action IN ('deny', 'challenge')
        ORDER BY ts, id
    ) AS p ON s.subject = p.subject AND s.last_at >= p.ts
    WHERE s.first_at < p.ends
    GROUP BY id
) AS h ON h.id = b.id
GROUP BY dimension, rule, rung, action
ORDER BY hits DESC, dimension, rule, rung, action;
