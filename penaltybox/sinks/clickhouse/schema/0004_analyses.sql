-- The shipped queries over roll-ups. `from`, `to` and `as_of` are UTC instants, `to` is exclusive. All are exact, whatever
-- was delivered or published again: roll-ups hold an event once (0003), and the small tables are read FINAL.

-- Requests and records by action and reason. `requests` weighs sampled allows and aggregated denials.
CREATE OR REPLACE VIEW totals AS
SELECT action, reason, enforced,
       sum(records) AS decisions,
       sum(s.requests) AS requests,
       uniqExactIf(user, user != '') AS users,
       min(s.first_at) AS first_at, max(s.last_at) AS last_at
FROM sightings(from = {from:DateTime64(3, 'UTC')}, to = {to:DateTime64(3, 'UTC')}) AS s
GROUP BY action, reason, enforced
ORDER BY decisions DESC, action, reason, enforced;

-- Share of the enforced denials per charged dimension; '' are those no limit is charged with (blocklist, outages).
CREATE OR REPLACE VIEW blocks_by_dimension AS
SELECT dimension, limit_name, reason, action,
       sum(d.records) AS records, sum(d.denials) AS denials,
       denials / sum(denials) OVER () AS share,
       uniqExact(subject) AS subjects
FROM denied_subjects(from = {from:DateTime64(3, 'UTC')}, to = {to:DateTime64(3, 'UTC')}) AS d
WHERE enforced
GROUP BY dimension, limit_name, reason, action
ORDER BY denials DESC, dimension, limit_name, reason, action;

-- Episodes: denials charged to one (limit, subject), and penalties of one (rule, subject), merged while the gap is at
-- most max(window, 10 min). No gap within ten minutes is longer, so what a slot has of a subject is one piece. The window
-- of a penalty is its rung's duration; a permanent one never ends.
CREATE OR REPLACE VIEW episodes AS
SELECT cause, name, dimension, subject, episode,
       min(at) AS started, max(until) AS ended, sum(p.denials) AS denials
FROM
(
    SELECT cause, name, dimension, subject, at, until, denials,
           sum(is_new) OVER (PARTITION BY cause, name, subject ORDER BY at, gap_ms, id ROWS UNBOUNDED PRECEDING) AS episode
    FROM
    (
        SELECT cause, name, dimension, subject, at, until, denials, gap_ms, id,
               lagInFrame(toNullable(toUnixTimestamp64Milli(until))) OVER w AS last_ms,
               isNull(last_ms) OR toUnixTimestamp64Milli(at) - last_ms > lagInFrame(gap_ms) OVER w AS is_new
        FROM
        (
            SELECT 'limit' AS cause, toString(limit_name) AS name, toString(dimension) AS dimension, subject,
                   min(d.first_at) AS at, max(d.last_at) AS until, sum(d.denials) AS denials, '' AS id,
                   argMax(d.last_gap_ms, (d.last_at, d.last_gap_ms)) AS gap_ms
            FROM denied_subjects(from = {from:DateTime64(3, 'UTC')}, to = {to:DateTime64(3, 'UTC')}) AS d
            WHERE enforced AND reason IN ('over_limit', 'local_fallback') AND limit_name != ''
            GROUP BY slot, limit_name, dimension, subject
            UNION ALL
            SELECT 'rule', toString(rule), toString(dimension), subject, ts, ts, toUInt64(1), id,
                   if(isNull(to_ms), 1000000000000, greatest(assumeNotNull(to_ms), 600000))
            FROM penalties FINAL
            WHERE ts >= {from:DateTime64(3, 'UTC')} AND ts < {to:DateTime64(3, 'UTC')}
              AND NOT shadow AND origin = 'rule' AND action IN ('challenge', 'deny')
        )
        WINDOW w AS (PARTITION BY cause, name, subject ORDER BY at, gap_ms, id ROWS BETWEEN 1 PRECEDING AND CURRENT ROW)
    )
) AS p
GROUP BY cause, name, dimension, subject, episode;

-- Everybody who was seen, once, with the time of the first sight.
CREATE OR REPLACE VIEW seen_subjects AS
SELECT who.1 AS dimension, who.2 AS value, min(s.first_at) AS first_at
FROM sightings(from = {from:DateTime64(3, 'UTC')}, to = {to:DateTime64(3, 'UTC')}) AS s
ARRAY JOIN arrayConcat([('user', s.user), ('device', s.device), ('ip', s.ip), ('api_key', s.api_key)],
    arrayMap((k, v) -> (toString(k), v), mapKeys(s.others), mapValues(s.others))) AS who
WHERE who.2 != ''
GROUP BY dimension, value;

-- FDR and FPR per dimension with 95 % intervals (docs/analytics.md defines every column, docs/decisions/0025 says why).
-- matures_s = -1 takes the times of label_weights; another value replaces all of them.
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
                    SELECT dimension, subject, max(u.seen) AS seen, sum(u.n) AS n, sum(u.young) AS young, sum(u.known) AS known,
                           sum(u.good) AS good, max(u.told) AS told, max(u.p) AS p
                    FROM
                    (
                        SELECT dimension, subject, false AS seen, countIf(mature) AS n, countIf(NOT mature) AS young,
                               countIf(mature AND labelled) AS known, sumIf(legitimate, mature) AS good, false AS told, 0. AS p
                        FROM judged_episodes(from = {from:DateTime64(3, 'UTC')}, to = {to:DateTime64(3, 'UTC')},
                            as_of = {as_of:DateTime64(3, 'UTC')}, matures_s = {matures_s:Int64})
                        GROUP BY dimension, subject
                        UNION ALL
                        SELECT substring(subject, 1, position(subject, ':') - 1), subject, false, 0, 0, 0, 0.,
                               abusive OR legitimate > 0, legitimate
                        FROM subject_labels(from = {from:DateTime64(3, 'UTC')}, as_of = {as_of:DateTime64(3, 'UTC')},
                            matures_s = {matures_s:Int64})
                        UNION ALL
                        SELECT dimension, concat(dimension, ':', value), true, 0, 0, 0, 0., false, 0.
                        FROM seen_subjects(from = {from:DateTime64(3, 'UTC')}, to = {to:DateTime64(3, 'UTC')})
                        WHERE first_at < (SELECT mature_before FROM maturity(from = {from:DateTime64(3, 'UTC')},
                            as_of = {as_of:DateTime64(3, 'UTC')}, matures_s = {matures_s:Int64}))
                    ) AS u
                    GROUP BY dimension, subject
                )
                GROUP BY dimension
                HAVING episodes + immature > 0 OR legitimate_seen > 0
            )
        )
    )
)
ORDER BY dimension;

-- The same as known now, by the labels' own times.
CREATE OR REPLACE VIEW false_positives AS
SELECT * FROM false_positives_as_of(from = {from:DateTime64(3, 'UTC')}, to = {to:DateTime64(3, 'UTC')},
    as_of = now64(3, 'UTC'), matures_s = -1);
