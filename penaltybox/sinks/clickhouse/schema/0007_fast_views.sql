-- The same answers from fewer rows.

-- Ids that our limiters make begin with their time, and rows are sorted by hour and id: so the ten minutes that no roll-up
-- covers are a few granules of their hour.
ALTER TABLE decisions ADD INDEX IF NOT EXISTS ix_ts ts TYPE minmax GRANULARITY 1;

ALTER TABLE decisions MATERIALIZE INDEX ix_ts;

-- How a period is read, as one value: slots with their good build, and the slots that are read from the rows.
CREATE OR REPLACE VIEW reading_slots AS
SELECT (groupArrayIf((slot, build), good), groupArrayIf(slot, NOT good)) AS plan
FROM
(
    SELECT slot, build, current AND slot >= {from:DateTime64(3, 'UTC')} AND addMinutes(slot, 10) <= {to:DateTime64(3, 'UTC')} AS good
    FROM slot_states(from = {from:DateTime64(3, 'UTC')}, to = {to:DateTime64(3, 'UTC')})
);

CREATE OR REPLACE VIEW decisions_per_minute AS
WITH (SELECT plan FROM reading_slots(from = {from:DateTime64(3, 'UTC')}, to = {to:DateTime64(3, 'UTC')})) AS plan
SELECT * FROM
(
SELECT slot, minute, source, scenario, dimension, limit_name, action, reason, enforced, cached,
       decisions, denials, requests, first_at, last_at
FROM decisions_1m
WHERE slot >= {from:DateTime64(3, 'UTC')} AND slot < {to:DateTime64(3, 'UTC')}
  AND (slot, build) IN (SELECT p.1, p.2 FROM (SELECT arrayJoin(plan.1) AS p))
UNION ALL
SELECT toStartOfTenMinutes(ts) AS slot, toStartOfMinute(ts) AS minute, source, scenario, dimension, limit_name, action, reason,
       enforced, cached, count() AS decisions, sum(count) AS denials, sum(count * sample_weight) AS requests,
       min(ts) AS first_at, max(ts) AS last_at
FROM decisions FINAL
WHERE ts >= {from:DateTime64(3, 'UTC')} AND ts < {to:DateTime64(3, 'UTC')}
  AND toStartOfHour(ts) IN (SELECT toStartOfHour(arrayJoin(plan.2)))
  AND toStartOfTenMinutes(ts) IN (SELECT arrayJoin(plan.2))
GROUP BY slot, minute, source, scenario, dimension, limit_name, action, reason, enforced, cached
);

CREATE OR REPLACE VIEW denied_subjects AS
WITH (SELECT plan FROM reading_slots(from = {from:DateTime64(3, 'UTC')}, to = {to:DateTime64(3, 'UTC')})) AS plan
SELECT * FROM
(
SELECT slot, scenario, route, dimension, limit_name, subject, action, reason, enforced, records, denials, established,
       first_at, last_at, last_gap_ms
FROM denials_10m
WHERE slot >= {from:DateTime64(3, 'UTC')} AND slot < {to:DateTime64(3, 'UTC')}
  AND (slot, build) IN (SELECT p.1, p.2 FROM (SELECT arrayJoin(plan.1) AS p))
UNION ALL
SELECT toStartOfTenMinutes(ts) AS slot, scenario, route, dimension, limit_name, subject, action, reason, enforced,
       count() AS records, sum(count) AS denials, sumIf(count, ifNull(established, false)) AS established,
       min(ts) AS first_at, max(ts) AS last_at,
       argMax(greatest(least(ifNull(window_s, 0), 1000000000) * 1000, 600000),
           (ts, greatest(least(ifNull(window_s, 0), 1000000000) * 1000, 600000))) AS last_gap_ms
FROM decisions FINAL
WHERE ts >= {from:DateTime64(3, 'UTC')} AND ts < {to:DateTime64(3, 'UTC')} AND action IN ('challenge', 'deny', 'shadow')
  AND toStartOfHour(ts) IN (SELECT toStartOfHour(arrayJoin(plan.2)))
  AND toStartOfTenMinutes(ts) IN (SELECT arrayJoin(plan.2))
GROUP BY slot, scenario, route, dimension, limit_name, subject, action, reason, enforced
);

CREATE OR REPLACE VIEW sightings AS
WITH (SELECT plan FROM reading_slots(from = {from:DateTime64(3, 'UTC')}, to = {to:DateTime64(3, 'UTC')})) AS plan
SELECT * FROM
(
SELECT slot, user, device, ip, ip_prefix, asn, api_key, others, action, reason, enforced, established, over,
       records, denials, requests, first_at, last_at
FROM sightings_10m
WHERE slot >= {from:DateTime64(3, 'UTC')} AND slot < {to:DateTime64(3, 'UTC')}
  AND (slot, build) IN (SELECT p.1, p.2 FROM (SELECT arrayJoin(plan.1) AS p))
UNION ALL
SELECT toStartOfTenMinutes(ts) AS slot, user, device, ip, ip_prefix, attrs['asn'] AS asn, api_key, others, action, reason, enforced,
       max(ifNull(established, false)) AS established,
       max(arrayExists(v -> has(splitByChar('+', splitByChar(':', toString(v))[1]), 'user'), violated)) AS over,
       count() AS records, sum(count) AS denials, sum(count * sample_weight) AS requests,
       min(ts) AS first_at, max(ts) AS last_at
FROM decisions FINAL
WHERE ts >= {from:DateTime64(3, 'UTC')} AND ts < {to:DateTime64(3, 'UTC')}
  AND toStartOfHour(ts) IN (SELECT toStartOfHour(arrayJoin(plan.2)))
  AND toStartOfTenMinutes(ts) IN (SELECT arrayJoin(plan.2))
GROUP BY slot, user, device, ip, ip_prefix, asn, api_key, others, action, reason, enforced
);

-- Episodes, as before: denials charged to one (limit, subject), and penalties of one (rule, subject), merged while the gap
-- is at most max(window, 10 min). What a slot has of a subject is several rows, in one piece: no gap in a slot is too long.
-- Rows are sorted twice, by their beginnings and by their ends: the slots lie at the same places in both, so where one
-- begins the row before, by the ends, is the latest of all before.
CREATE OR REPLACE VIEW episodes AS
SELECT cause, name, dimension, subject, run.1 AS episode, run.2 AS started, run.3 AS ended, run.4 AS denials
FROM
(
    SELECT cause, name, dimension, subject,
           arrayFilter((x, b) -> b, arrayMap(x -> x.1, f), breaks) AS starts,
           arrayFilter((x, b) -> b, arrayMap(x -> x.2, l), arrayRotateLeft(breaks, 1)) AS ends,
           arrayFilter((x, b) -> b, arrayCumSum(arrayMap(x -> x.4, f)), arrayRotateLeft(breaks, 1)) AS sums,
           arrayJoin(arrayZip(arrayEnumerate(starts), starts, ends,
               arrayMap((x, y) -> x - y, sums, arrayPopBack(arrayPushFront(sums, 0))))) AS run
    FROM
    (
        SELECT cause, name, dimension, subject, f, l,
               arrayMap((x, y, i) -> i = 1 OR toUnixTimestamp64Milli(x.1) - toUnixTimestamp64Milli(y.2) > y.3,
                   f, arrayPopBack(arrayPushFront(l, f[1])), arrayEnumerate(f)) AS breaks
        FROM
        (
            SELECT 'limit' AS cause, toString(limit_name) AS name, toString(d.dimension) AS dimension, subject,
                   arraySort(groupArray((d.first_at, d.last_at, d.last_gap_ms, d.denials))) AS f,
                   arraySort(x -> (x.2, x.3), f) AS l
            FROM denied_subjects(from = {from:DateTime64(3, 'UTC')}, to = {to:DateTime64(3, 'UTC')}) AS d
            WHERE enforced AND reason IN ('over_limit', 'local_fallback') AND limit_name != ''
            GROUP BY limit_name, d.dimension, subject
            UNION ALL
            SELECT 'rule', toString(rule) AS name, toString(p.dimension), subject,
                   arraySort(groupArray((ts, ts, if(isNull(to_ms), 1000000000000, greatest(assumeNotNull(to_ms), 600000)), toUInt64(1)))) AS f,
                   f
            FROM penalties AS p FINAL
            WHERE ts >= {from:DateTime64(3, 'UTC')} AND ts < {to:DateTime64(3, 'UTC')}
              AND NOT shadow AND origin = 'rule' AND action IN ('challenge', 'deny')
            GROUP BY rule, p.dimension, subject
        )
    )
);

-- Outcomes as numbers: milliseconds * 65536 + the label's place in label_weights by name, per subject.
CREATE OR REPLACE VIEW label_marks AS
WITH (SELECT (groupArray(label), groupArray(abuse)) FROM (SELECT label, abuse FROM label_weights FINAL ORDER BY label)) AS kind
SELECT arrayJoin(o.subjects) AS subject, toUnixTimestamp64Milli(o.ts) * 65536 + indexOf(kind.1, toString(o.label)) AS mark,
       kind.2[indexOf(kind.1, toString(o.label))] AS abuse
FROM outcomes AS o FINAL
WHERE o.ts < {as_of:DateTime64(3, 'UTC')} AND has(kind.1, toString(o.label))
  AND (o.ts >= {from:DateTime64(3, 'UTC')} OR kind.2[indexOf(kind.1, toString(o.label))]);

CREATE OR REPLACE VIEW judged_episodes AS
WITH (SELECT (groupArray(label), groupArray(weight), groupArray(horizon_ms), groupArray(after_limit), groupArray(abuse)) FROM
         (SELECT label, weight, if({matures_s:Int64} >= 0, {matures_s:Int64}, matures_s) * 1000 AS horizon_ms, after_limit, abuse
          FROM label_weights FINAL ORDER BY label)) AS kind,
     assumeNotNull((SELECT mature_before FROM maturity(from = {from:DateTime64(3, 'UTC')}, as_of = {as_of:DateTime64(3, 'UTC')}, matures_s = {matures_s:Int64}))) AS mature_before
SELECT cause, name, dimension, subject, started, ended, denials, ended < mature_before AS mature,
       arrayMap(i -> (kind.1[i], kind.2[i]), met) AS kinds,
       abusive OR notEmpty(met) AS labelled,
       if(abusive, 0, 1 - arrayProduct(arrayPushBack(arrayMap(i -> 1 - kind.2[i], met), 1))) AS legitimate
FROM
(
    SELECT e.cause AS cause, e.name AS name, e.dimension AS dimension, e.subject AS subject,
           e.started AS started, e.ended AS ended, e.denials AS denials, s.abusive AS abusive,
           arrayDistinct(arrayMap(m -> m % 65536, arrayFilter(m -> kind.2[m % 65536] > 0
               AND intDiv(m, 65536) >= toUnixTimestamp64Milli(e.started)
               AND intDiv(m, 65536) <= toUnixTimestamp64Milli(e.ended) + kind.3[m % 65536], s.marks))) AS met
    FROM episodes(from = {from:DateTime64(3, 'UTC')}, to = {to:DateTime64(3, 'UTC')}) AS e
    LEFT JOIN
    (
        SELECT subject, groupArray(mark) AS marks, max(abuse) AS abusive
        FROM label_marks(from = {from:DateTime64(3, 'UTC')}, as_of = {as_of:DateTime64(3, 'UTC')})
        GROUP BY subject
    ) AS s ON e.subject = s.subject
);

-- Per subject that was limited or has a label: its mature and immature episodes, and what its labels say of it. `p`: by
-- labels that an unlimited subject can get too; `told`: it has such a label. The same as judged_episodes, summed up, and
-- cheaper: everything of a subject meets in one GROUP BY. A denial whose subject is not known stands under `dimension:`.
CREATE OR REPLACE VIEW judged_subjects AS
WITH (SELECT (groupArray(label), groupArray(weight), groupArray(horizon_ms), groupArray(after_limit), groupArray(abuse)) FROM
         (SELECT label, weight, if({matures_s:Int64} >= 0, {matures_s:Int64}, matures_s) * 1000 AS horizon_ms, after_limit, abuse
          FROM label_weights FINAL ORDER BY label)) AS kind,
     assumeNotNull((SELECT toUnixTimestamp64Milli(mature_before) FROM maturity(from = {from:DateTime64(3, 'UTC')}, as_of = {as_of:DateTime64(3, 'UTC')}, matures_s = {matures_s:Int64}))) AS mature_before_ms
SELECT subject, toUInt64(arrayCount(mature)) AS n, toUInt64(length(mature)) - n AS young,
       if(abusive, n, toUInt64(arrayCount((k, m) -> m AND notEmpty(k), kinds, mature))) AS known,
       if(abusive, 0, arraySum((k, m) -> if(m, 1 - arrayProduct(arrayPushBack(arrayMap(i -> 1 - kind.2[i], k), 1)), 0), kinds, mature)) AS good,
       if(abusive, 0, always) AS p, abusive OR always > 0 AS told
FROM
(
    SELECT subject, abusive,
           1 - arrayProduct(arrayPushBack(arrayMap(i -> if(kind.4[i] OR kind.2[i] <= 0, 1, 1 - kind.2[i]), arrayDistinct(arrayMap(m -> m % 65536, marks))), 1)) AS always,
           arrayMap(e -> e < mature_before_ms, ends) AS mature,
           arrayMap((s, e) -> arrayDistinct(arrayMap(m -> m % 65536, arrayFilter(m -> kind.2[m % 65536] > 0
               AND intDiv(m, 65536) >= s AND intDiv(m, 65536) <= e + kind.3[m % 65536], marks))), starts, ends) AS kinds
    FROM
    (
        SELECT subject, marks, abusive,
               arrayFilter((x, b) -> b, arrayMap(x -> x.2, f), breaks) AS starts,
               arrayFilter((x, b) -> b, arrayMap(x -> x.3, l), arrayRotateLeft(breaks, 1)) AS ends
        FROM
        (
            SELECT subject, marks, abusive, f, l,
                   arrayMap((x, y, i) -> i = 1 OR x.1 != y.1 OR x.2 - y.3 > y.4,
                       f, arrayPopBack(arrayPushFront(l, f[1])), arrayEnumerate(f)) AS breaks
            FROM
            (
                SELECT subject, arraySort(groupArrayIf((name, first_ms, last_ms, gap_ms), mark = 0)) AS f,
                       arraySort(x -> (x.1, x.3, x.4), f) AS l,
                       groupArrayIf(mark, mark > 0) AS marks, max(abuse) AS abusive
                FROM
                (
                    SELECT if(subject = '', concat(dimension, ':'), subject) AS subject, sipHash64('limit', toString(limit_name)) AS name,
                           toUnixTimestamp64Milli(first_at) AS first_ms, toUnixTimestamp64Milli(last_at) AS last_ms,
                           last_gap_ms AS gap_ms, toInt64(0) AS mark, false AS abuse
                    FROM denied_subjects(from = {from:DateTime64(3, 'UTC')}, to = {to:DateTime64(3, 'UTC')})
                    WHERE enforced AND reason IN ('over_limit', 'local_fallback') AND limit_name != ''
                    UNION ALL
                    SELECT subject, sipHash64('rule', toString(rule)), toUnixTimestamp64Milli(ts), toUnixTimestamp64Milli(ts),
                           if(isNull(to_ms), 1000000000000, greatest(assumeNotNull(to_ms), 600000)), 0, false
                    FROM penalties FINAL
                    WHERE ts >= {from:DateTime64(3, 'UTC')} AND ts < {to:DateTime64(3, 'UTC')}
                      AND NOT shadow AND origin = 'rule' AND action IN ('challenge', 'deny')
                    UNION ALL
                    SELECT subject, 0, 0, 0, 0, mark, abuse FROM label_marks(from = {from:DateTime64(3, 'UTC')}, as_of = {as_of:DateTime64(3, 'UTC')})
                )
                GROUP BY subject
            )
        )
    )
);

-- FDR and FPR per dimension, as before.
CREATE OR REPLACE VIEW false_positives_as_of AS
SELECT dimension, episodes, immature, labelled, legitimate, fdr_status,
       if(fdr_known, good_share, NULL) AS fdr_lower_bound,
       if(fdr_known, good_low, NULL) AS fdr_low,
       if(fdr_known, good_high, NULL) AS fdr_high,
       fdr_labelled, fdr_legitimate, fdr_n, fdr_estimate_status,
       if(fdr_n < 30, NULL, known_share) AS fdr_estimate,
       if(fdr_n < 30, NULL, known_low) AS fdr_estimate_low,
       if(fdr_n < 30, NULL, known_high) AS fdr_estimate_high,
       legitimate_seen, legitimate_limited, limited_seen, unlimited_seen, limited_labelled, unlimited_labelled,
       limited_weight, unlimited_weight, fpr_n, fpr_status,
       if(fpr_known, limited_good / (limited_good + unlimited_good), NULL) AS fpr,
       if(fpr_known, if(a_low + b_high > 0, a_low / (a_low + b_high), 0), NULL) AS fpr_low,
       if(fpr_known, if(a_high + b_low > 0, a_high / (a_high + b_low), 1), NULL) AS fpr_high
FROM
(
    WITH 1.959963984540054 AS z
    SELECT *,
           multiIf(episodes < 30, 'insufficient', labelled = 0, 'unlabelled', episodes < 100, 'report only', 'actionable') AS fdr_status,
           episodes >= 30 AND labelled > 0 AS fdr_known,
           greatest(0, (good_share + z * z / (2 * good_n) - z * sqrt(good_share * (1 - good_share) / good_n + z * z / (4 * good_n * good_n))) / (1 + z * z / good_n)) AS good_low,
           least(1, (good_share + z * z / (2 * good_n) + z * sqrt(good_share * (1 - good_share) / good_n + z * z / (4 * good_n * good_n))) / (1 + z * z / good_n)) AS good_high,
           multiIf(fdr_n < 30, 'insufficient', fdr_n < 100, 'report only', 'actionable') AS fdr_estimate_status,
           greatest(0, (known_share + z * z / (2 * known_n) - z * sqrt(known_share * (1 - known_share) / known_n + z * z / (4 * known_n * known_n))) / (1 + z * z / known_n)) AS known_low,
           least(1, (known_share + z * z / (2 * known_n) + z * sqrt(known_share * (1 - known_share) / known_n + z * z / (4 * known_n * known_n))) / (1 + z * z / known_n)) AS known_high,
           multiIf(fpr_n < 30, 'insufficient', nobody, 'unlabelled', fpr_n < 100, 'report only', 'actionable') AS fpr_status,
           fpr_n >= 30 AND NOT nobody AS fpr_known,
           limited_seen * greatest(0, (a + z * z / (2 * a_n) - z * sqrt(a * (1 - a) / a_n + z * z / (4 * a_n * a_n))) / (1 + z * z / a_n)) AS a_low,
           limited_seen * least(1, (a + z * z / (2 * a_n) + z * sqrt(a * (1 - a) / a_n + z * z / (4 * a_n * a_n))) / (1 + z * z / a_n)) AS a_high,
           unlimited_seen * greatest(0, (b + z * z / (2 * b_n) - z * sqrt(b * (1 - b) / b_n + z * z / (4 * b_n * b_n))) / (1 + z * z / b_n)) AS b_low,
           unlimited_seen * least(1, (b + z * z / (2 * b_n) + z * sqrt(b * (1 - b) / b_n + z * z / (4 * b_n * b_n))) / (1 + z * z / b_n)) AS b_high
    FROM
    (
        SELECT *,
               greatest(episodes, 1) AS good_n, least(1, legitimate / greatest(episodes, 1)) AS good_share,
               if(fdr_squares > 0, fdr_labelled * fdr_labelled / fdr_squares, 0) AS fdr_n,
               if(fdr_squares > 0, fdr_labelled * fdr_labelled / fdr_squares, 1) AS known_n,
               least(1, fdr_legitimate / greatest(fdr_labelled, 1)) AS known_share,
               greatest(limited_labelled, 1) AS a_n, least(1, legitimate_limited / greatest(limited_labelled, 1)) AS a,
               greatest(unlimited_labelled, 1) AS b_n, least(1, legitimate_unlimited / greatest(unlimited_labelled, 1)) AS b,
               (limited_seen > 0 AND limited_labelled = 0) OR (unlimited_seen > 0 AND unlimited_labelled = 0) AS nobody,
               legitimate_limited * limited_weight AS limited_good, legitimate_unlimited * unlimited_weight AS unlimited_good,
               if(limited_squares * limited_weight + unlimited_squares * unlimited_weight > 0,
                   pow(legitimate_limited * limited_weight + legitimate_unlimited * unlimited_weight, 2)
                   / (limited_squares * pow(limited_weight, 2) + unlimited_squares * pow(unlimited_weight, 2)), 0) AS fpr_n
        FROM
        (
            SELECT *, limited_seen / greatest(limited_labelled, 1) AS limited_weight,
                   unlimited_seen / greatest(unlimited_labelled, 1) AS unlimited_weight
            FROM
            (
                SELECT dimension, sum(n) AS episodes, sum(young) AS immature, sum(known) AS labelled, sum(good) AS legitimate,
                       sum(if(told, n, known)) AS fdr_labelled, sum(if(told, greatest(p * n, good), good)) AS fdr_legitimate,
                       sum(pow(if(told, n, known), 2)) AS fdr_squares,
                       sumIf(p, seen) AS legitimate_seen, sumIf(p, seen AND n > 0) AS legitimate_limited,
                       sumIf(p, seen AND n = 0) AS legitimate_unlimited,
                       countIf(seen AND n > 0) AS limited_seen, countIf(seen AND n = 0) AS unlimited_seen,
                       countIf(seen AND n > 0 AND told) AS limited_labelled, countIf(seen AND n = 0 AND told) AS unlimited_labelled,
                       sumIf(p * p, seen AND n > 0) AS limited_squares, sumIf(p * p, seen AND n = 0) AS unlimited_squares
                FROM
                (
                    SELECT substring(u.subject, 1, position(u.subject, ':') - 1) AS dimension, max(u.seen) AS seen, sum(u.n) AS n,
                           sum(u.young) AS young, sum(u.known) AS known, sum(u.good) AS good, max(u.told) AS told, max(u.p) AS p
                    FROM
                    (
                        SELECT subject, false AS seen, n, young, known, good, told, p
                        FROM judged_subjects(from = {from:DateTime64(3, 'UTC')}, to = {to:DateTime64(3, 'UTC')}, as_of = {as_of:DateTime64(3, 'UTC')}, matures_s = {matures_s:Int64})
                        UNION ALL
                        SELECT concat(who.1, ':', who.2), true, 0, 0, 0, 0., false, 0.
                        FROM sightings(from = {from:DateTime64(3, 'UTC')}, to = {to:DateTime64(3, 'UTC')})
                        ARRAY JOIN arrayConcat([('user', user), ('device', device), ('ip', ip), ('api_key', api_key)],
                            if(notEmpty(others), arrayMap((k, v) -> (toString(k), v), mapKeys(others), mapValues(others)), [])) AS who
                        WHERE who.2 != '' AND first_at < (SELECT mature_before FROM maturity(from = {from:DateTime64(3, 'UTC')}, as_of = {as_of:DateTime64(3, 'UTC')}, matures_s = {matures_s:Int64}))
                    ) AS u
                    GROUP BY u.subject
                )
                GROUP BY dimension
                HAVING episodes + immature > 0 OR legitimate_seen > 0
            )
        )
    )
)
ORDER BY dimension;

-- Shared addresses, as before; an address is its own place, so nothing is looked up for it.
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
    SELECT if({by:String} = 'ip', substring(limited.subject, 4), seen.place) AS place, count() AS ip_episodes
    FROM
    (
        SELECT subject FROM episodes(from = {from:DateTime64(3, 'UTC')}, to = {to:DateTime64(3, 'UTC')}) WHERE dimension = 'ip'
    ) AS limited
    LEFT JOIN
    (
        SELECT DISTINCT concat('ip:', ip) AS subject, if({by:String} = 'prefix', ip_prefix, asn) AS place
        FROM sightings(from = {from:DateTime64(3, 'UTC')}, to = {to:DateTime64(3, 'UTC')}) WHERE {by:String} != 'ip' AND ip != ''
    ) AS seen ON limited.subject = seen.subject
    GROUP BY place
) AS e ON p.place = e.place
GROUP BY p.place
HAVING ip_episodes > 0 OR denied_users > 0
ORDER BY denied_within_limit DESC, place;
