-- The shipped queries, as parameterised views: any client can read them. `from`, `to`, `as_of` are UTC instants.
-- All of them read FINAL, so an event stored twice counts once.

-- Requests and rows by action and reason. `requests` weighs sampled allows and aggregated denials.
CREATE OR REPLACE VIEW totals AS
SELECT action, reason, enforced,
       count() AS decisions,
       sum(count * sample_weight) AS requests,
       uniqExactIf(user, user != '') AS users,
       min(ts) AS first_at, max(ts) AS last_at
FROM decisions FINAL
WHERE ts >= {from:DateTime64(3, 'UTC')} AND ts < {to:DateTime64(3, 'UTC')}
GROUP BY action, reason, enforced
ORDER BY decisions DESC, action, reason, enforced;

-- Share of the enforced denials per charged dimension; '' are those no limit is charged with (blocklist, outages).
CREATE OR REPLACE VIEW blocks_by_dimension AS
SELECT dimension, limit_name, reason, action,
       count() AS records, sum(count) AS denials,
       denials / sum(denials) OVER () AS share,
       uniqExact(subject) AS subjects
FROM decisions FINAL
WHERE ts >= {from:DateTime64(3, 'UTC')} AND ts < {to:DateTime64(3, 'UTC')}
  AND enforced AND action IN ('challenge', 'deny', 'shadow')
GROUP BY dimension, limit_name, reason, action
ORDER BY denials DESC, dimension, limit_name, reason, action;

CREATE OR REPLACE VIEW penalties_by_rung AS
SELECT rule, to_rung AS rung, dimension, action, shadow, origin,
       count() AS penalties, uniqExact(subject) AS subjects, countIf(late) AS late_ones,
       min(ts) AS first_at, max(ts) AS last_at
FROM penalties FINAL
WHERE ts >= {from:DateTime64(3, 'UTC')} AND ts < {to:DateTime64(3, 'UTC')}
GROUP BY rule, rung, dimension, action, shadow, origin
ORDER BY shadow, rule, rung, dimension, action, origin;

CREATE OR REPLACE VIEW dead_letters_by_reason AS
SELECT source_topic, reason, count() AS letters, max(ts) AS last_at, argMax(detail, ts) AS last_detail
FROM dead_letters FINAL
WHERE ts >= {from:DateTime64(3, 'UTC')} AND ts < {to:DateTime64(3, 'UTC')}
GROUP BY source_topic, reason
ORDER BY letters DESC, source_topic, reason;

-- Episodes: denials charged to one (limit, subject), and penalties of one (rule, subject), merged while the gap is at
-- most max(window, 10 min). The window of a penalty is its rung's duration; a permanent one never ends.
CREATE OR REPLACE VIEW episodes AS
SELECT cause, name, dimension, subject, episode,
       min(at) AS started, max(at) AS ended, sum(denials) AS denials
FROM
(
    SELECT cause, name, dimension, subject, at, denials,
           sum(is_new) OVER (PARTITION BY cause, name, subject ORDER BY at, gap_ms, id ROWS UNBOUNDED PRECEDING) AS episode
    FROM
    (
        SELECT cause, name, dimension, subject, at, denials, gap_ms, id,
               lagInFrame(toNullable(at_ms)) OVER w AS last_ms,
               isNull(last_ms) OR at_ms - last_ms > lagInFrame(gap_ms) OVER w AS is_new
        FROM
        (
            SELECT 'limit' AS cause, toString(limit_name) AS name, toString(dimension) AS dimension, subject, ts AS at,
                   toUnixTimestamp64Milli(ts) AS at_ms, toUInt64(count) AS denials, id,
                   greatest(least(ifNull(window_s, 0), 1000000000) * 1000, 600000) AS gap_ms
            FROM decisions FINAL
            WHERE ts >= {from:DateTime64(3, 'UTC')} AND ts < {to:DateTime64(3, 'UTC')} AND enforced
              AND action IN ('challenge', 'deny', 'shadow') AND reason IN ('over_limit', 'local_fallback') AND limit_name != ''
            UNION ALL
            SELECT 'rule', toString(rule), toString(dimension), subject, ts,
                   toUnixTimestamp64Milli(ts), toUInt64(1), id,
                   if(isNull(to_ms), 1000000000000, greatest(assumeNotNull(to_ms), 600000))
            FROM penalties FINAL
            WHERE ts >= {from:DateTime64(3, 'UTC')} AND ts < {to:DateTime64(3, 'UTC')}
              AND NOT shadow AND origin = 'rule' AND action IN ('challenge', 'deny')
        )
        WINDOW w AS (PARTITION BY cause, name, subject ORDER BY at, gap_ms, id ROWS BETWEEN 1 PRECEDING AND CURRENT ROW)
    )
)
GROUP BY cause, name, dimension, subject, episode;

-- What outcomes say of a subject, as far as `as_of` knows. A kind of label counts once, however often it came.
-- (arrayProduct of nothing is 0, hence the pushed 1.)
-- `legitimate`: 1 - product(1 - weight) over the kinds that an unlimited subject can get too; abuse makes it 0.
CREATE OR REPLACE VIEW subject_labels AS
SELECT subject,
       groupArrayIf((label, toUnixTimestamp64Milli(ts), weight, horizon_ms), weight > 0) AS labels,
       max(abuse) AS abusive,
       if(abusive, 0, 1 - arrayProduct(arrayPushBack(arrayMap(l -> 1 - l.2,
           groupUniqArrayIf((label, weight), weight > 0 AND NOT after_limit)), 1))) AS legitimate
FROM
(
    SELECT arrayJoin(o.subjects) AS subject, toString(o.label) AS label, o.ts AS ts, w.weight AS weight, w.abuse AS abuse,
           w.after_limit AS after_limit,
           if({matures_s:Int64} >= 0, {matures_s:Int64}, w.matures_s) * 1000 AS horizon_ms
    FROM outcomes AS o FINAL
    INNER JOIN (SELECT label, weight, matures_s, abuse, after_limit FROM label_weights FINAL) AS w ON o.label = w.label
    WHERE o.ts < {as_of:DateTime64(3, 'UTC')} AND (o.ts >= {from:DateTime64(3, 'UTC')} OR w.abuse)
)
GROUP BY subject;

-- The instant before which everything is mature: as_of less the longest time that one of the labels in use may take.
CREATE OR REPLACE VIEW maturity AS
SELECT max(if({matures_s:Int64} >= 0, {matures_s:Int64}, matures_s)) AS longest_s,
       {as_of:DateTime64(3, 'UTC')} - toIntervalSecond(longest_s) AS mature_before
FROM label_weights FINAL
WHERE weight > 0 AND ({matures_s:Int64} >= 0 OR label IN
    (SELECT label FROM outcomes FINAL WHERE ts >= {from:DateTime64(3, 'UTC')} AND ts < {as_of:DateTime64(3, 'UTC')}));

-- Episodes with what is known of them: mature or not, labelled or not, and `legitimate`, the probability that the
-- subject was. A label counts from the episode's start until the label's own time after its end; abuse at any time.
CREATE OR REPLACE VIEW judged_episodes AS
SELECT e.cause AS cause, e.name AS name, e.dimension AS dimension, e.subject AS subject,
       e.started AS started, e.ended AS ended, e.denials AS denials,
       e.ended < (SELECT mature_before FROM maturity(from = {from:DateTime64(3, 'UTC')},
           as_of = {as_of:DateTime64(3, 'UTC')}, matures_s = {matures_s:Int64})) AS mature,
       arrayDistinct(arrayMap(l -> (l.1, l.3), arrayFilter(
           l -> l.2 >= toUnixTimestamp64Milli(e.started) AND l.2 <= toUnixTimestamp64Milli(e.ended) + l.4, s.labels))) AS kinds,
       s.abusive OR notEmpty(kinds) AS labelled,
       if(s.abusive, 0, 1 - arrayProduct(arrayPushBack(arrayMap(l -> 1 - l.2, kinds), 1))) AS legitimate
FROM episodes(from = {from:DateTime64(3, 'UTC')}, to = {to:DateTime64(3, 'UTC')}) AS e
LEFT JOIN subject_labels(from = {from:DateTime64(3, 'UTC')}, as_of = {as_of:DateTime64(3, 'UTC')},
    matures_s = {matures_s:Int64}) AS s ON e.subject = s.subject;

-- FDR and FPR per dimension with Wilson 95 % intervals (docs/analytics.md defines every column).
-- matures_s = -1 takes the times of label_weights; another value replaces all of them.
CREATE OR REPLACE VIEW false_positives AS
WITH 1.959963984540054 AS z
SELECT dimension,
       sum(n) AS episodes, sum(young) AS immature, sum(known) AS labelled, sum(good) AS legitimate,
       multiIf(episodes < 30, 'insufficient', labelled = 0, 'unlabelled', episodes < 100, 'report only', 'actionable') AS fdr_status,
       if(fdr_status IN ('insufficient', 'unlabelled'), NULL, good_share) AS fdr_lower_bound,
       if(isNull(fdr_lower_bound), NULL, greatest(0, (good_share + z * z / (2 * episodes) - z * sqrt(
           good_share * (1 - good_share) / episodes + z * z / (4 * episodes * episodes))) / (1 + z * z / episodes))) AS fdr_low,
       if(isNull(fdr_lower_bound), NULL, least(1, (good_share + z * z / (2 * episodes) + z * sqrt(
           good_share * (1 - good_share) / episodes + z * z / (4 * episodes * episodes))) / (1 + z * z / episodes))) AS fdr_high,
       sum(seen) AS legitimate_seen, sum(hurt) AS legitimate_limited,
       if(sum(squares) > 0, legitimate_seen * legitimate_seen / sum(squares), 0) AS fpr_n,
       multiIf(fpr_n < 30, 'insufficient', fpr_n < 100, 'report only', 'actionable') AS fpr_status,
       if(fpr_status = 'insufficient', NULL, hurt_share) AS fpr,
       if(isNull(fpr), NULL, greatest(0, (hurt_share + z * z / (2 * fpr_n) - z * sqrt(
           hurt_share * (1 - hurt_share) / fpr_n + z * z / (4 * fpr_n * fpr_n))) / (1 + z * z / fpr_n))) AS fpr_low,
       if(isNull(fpr), NULL, least(1, (hurt_share + z * z / (2 * fpr_n) + z * sqrt(
           hurt_share * (1 - hurt_share) / fpr_n + z * z / (4 * fpr_n * fpr_n))) / (1 + z * z / fpr_n))) AS fpr_high
FROM
(
    SELECT dimension, sum(n) AS n, sum(young) AS young, sum(known) AS known, sum(good) AS good, sum(seen) AS seen,
           sum(hurt) AS hurt, sum(squares) AS squares,
           if(n > 0, least(1, good / n), 0) AS good_share, if(seen > 0, least(1, hurt / seen), 0) AS hurt_share
    FROM
    (
        SELECT dimension, countIf(mature) AS n, countIf(NOT mature) AS young, countIf(mature AND labelled) AS known,
               sumIf(legitimate, mature) AS good, 0. AS seen, 0. AS hurt, 0. AS squares
        FROM judged_episodes(from = {from:DateTime64(3, 'UTC')}, to = {to:DateTime64(3, 'UTC')},
            as_of = {as_of:DateTime64(3, 'UTC')}, matures_s = {matures_s:Int64})
        GROUP BY dimension
        UNION ALL
        SELECT substring(subject, 1, position(subject, ':') - 1) AS dimension, 0, 0, 0, 0.,
               sum(legitimate), sumIf(legitimate, limited), sum(legitimate * legitimate)
        FROM
        (
            SELECT subject, legitimate,
                   subject IN (SELECT subject FROM judged_episodes(from = {from:DateTime64(3, 'UTC')},
                       to = {to:DateTime64(3, 'UTC')}, as_of = {as_of:DateTime64(3, 'UTC')},
                       matures_s = {matures_s:Int64}) WHERE mature) AS limited
            FROM subject_labels(from = {from:DateTime64(3, 'UTC')}, as_of = {as_of:DateTime64(3, 'UTC')},
                matures_s = {matures_s:Int64})
            WHERE legitimate > 0 AND subject IN
            (
                SELECT arrayJoin(arrayConcat(
                    if(user = '', [], [concat('user:', user)]), if(device = '', [], [concat('device:', device)]),
                    if(ip = '', [], [concat('ip:', ip)]), if(api_key = '', [], [concat('api_key:', api_key)]),
                    arrayMap((k, v) -> concat(k, ':', v), mapKeys(others), mapValues(others))))
                FROM decisions FINAL
                WHERE ts >= {from:DateTime64(3, 'UTC')} AND ts < {to:DateTime64(3, 'UTC')}
                  AND ts < (SELECT mature_before FROM maturity(from = {from:DateTime64(3, 'UTC')},
                      as_of = {as_of:DateTime64(3, 'UTC')}, matures_s = {matures_s:Int64}))
            )
        )
        GROUP BY dimension
    )
    GROUP BY dimension
)
GROUP BY dimension, good_share, hurt_share
ORDER BY dimension;

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
    SELECT multiIf({by:String} = 'ip', ip, {by:String} = 'prefix', d.ip_prefix, d.attrs['asn']) AS place,
           user, max(d.ip_prefix) AS prefix, sum(d.count * d.sample_weight) AS weight,
           user != '' AND max(ifNull(d.established, false)) AS is_established,
           max(d.enforced AND d.action IN ('challenge', 'deny', 'shadow')) AS denied,
           user != '' AND user IN
           (
               SELECT user FROM decisions FINAL
               WHERE ts >= {from:DateTime64(3, 'UTC')} AND ts < {to:DateTime64(3, 'UTC')}
                 AND arrayExists(v -> has(splitByChar('+', splitByChar(':', toString(v))[1]), 'user'), violated)
               UNION ALL
               SELECT substring(subject, 6) FROM penalties FINAL
               WHERE dimension = 'user' AND NOT shadow AND origin = 'rule' AND action IN ('challenge', 'deny')
                 AND ts < {to:DateTime64(3, 'UTC')} AND (isNull(until) OR until >= {from:DateTime64(3, 'UTC')})
           ) AS is_over
    FROM decisions AS d FINAL
    WHERE d.ts >= {from:DateTime64(3, 'UTC')} AND d.ts < {to:DateTime64(3, 'UTC')} AND place != ''
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
               multiIf({by:String} = 'ip', ip, {by:String} = 'prefix', ip_prefix, attrs['asn']) AS place
        FROM decisions FINAL
        WHERE ts >= {from:DateTime64(3, 'UTC')} AND ts < {to:DateTime64(3, 'UTC')} AND ip != ''
    ) AS seen ON limited.subject = seen.subject
    GROUP BY place
) AS e ON p.place = e.place
GROUP BY p.place
HAVING ip_episodes > 0 OR denied_users > 0
ORDER BY denied_within_limit DESC, place;
