-- What the probe says: of the limited episodes, how many were of people, from denials that became challenges by chance.

-- Enforced refusals by a limit, old enough that the challenge was passed by now or will not be. `share`: the probability
-- with which the probe drew it, 0 if it did not. `passed`: an outcome challenge_passed refers to it in time.
-- `who` was challenged: the user, else the charged subject.
CREATE OR REPLACE VIEW settled_refusals AS
WITH (SELECT toInt64(if({matures_s:Int64} >= 0, {matures_s:Int64}, max(matures_s))) FROM label_weights FINAL
      WHERE label = 'challenge_passed') AS horizon_s
SELECT d.id AS id, d.ts AS ts, d.dimension AS dimension, d.limit_name AS limit_name, d.subject AS subject, d.who AS who,
       d.established AS established, d.action AS action, d.share AS share,
       p.ref != '' AND p.passed_at <= d.ts + toIntervalSecond(horizon_s) AS passed
FROM
(
    SELECT id, ts, toString(dimension) AS dimension, toString(limit_name) AS limit_name, subject,
           if(user != '', concat('user:', user), subject) AS who, ifNull(established, false) AS established,
           toString(action) AS action,
           if(action = 'challenge' AND reason = 'over_limit', toFloat64OrZero(attrs['probe']), 0) AS share
    FROM decisions FINAL
    WHERE ts >= {from:DateTime64(3, 'UTC')} AND ts < {to:DateTime64(3, 'UTC')}
      AND ts < {as_of:DateTime64(3, 'UTC')} - toIntervalSecond(horizon_s) AND enforced
      AND action IN ('challenge', 'deny', 'shadow') AND reason IN ('over_limit', 'local_fallback') AND limit_name != ''
) AS d
LEFT JOIN
(
    SELECT ref, min(ts) AS passed_at FROM outcomes FINAL
    WHERE label = 'challenge_passed' AND ref != '' AND ts >= {from:DateTime64(3, 'UTC')} AND ts < {as_of:DateTime64(3, 'UTC')}
    GROUP BY ref
) AS p ON p.ref = d.id;

-- FDR per dimension from the probe (docs/analytics.md). An episode is in it if its first refusal was drawn: the chance of
-- that is `share`, whatever happens afterwards. Where shares differ, each episode stands for 1/share.
CREATE OR REPLACE VIEW probe_estimates AS
SELECT dimension, drawn, drawn_passed, probe_n, pass_rate, trusted, trusted_pass_rate, abusers, abuser_pass_rate,
       multiIf(least_n < 30, 'insufficient', trusted_pass_rate - abuser_pass_rate < 0.2, 'indistinct',
               least_n < 100, 'report only', 'actionable') AS probe_status,
       if(probe_status IN ('insufficient', 'indistinct'), NULL, greatest(0, least(1,
           (pass_rate - abuser_pass_rate) / (trusted_pass_rate - abuser_pass_rate)))) AS fdr_probe,
       multiIf(isNull(fdr_probe), NULL, bounds[2].2 <= bounds[3].2, 0, greatest(0, least(1,
           (bounds[1].1 - bounds[3].2) / (bounds[2].2 - bounds[3].2)))) AS fdr_probe_low,
       multiIf(isNull(fdr_probe), NULL, bounds[2].1 <= bounds[3].1, 1, greatest(0, least(1,
           (bounds[1].2 - bounds[3].1) / (bounds[2].1 - bounds[3].1)))) AS fdr_probe_high
FROM
(
    WITH 1.959963984540054 AS z
    SELECT *, least(probe_n, toFloat64(trusted), toFloat64(abusers)) AS least_n,
           arrayMap(s -> (
               greatest(0, (s.1 + z * z / (2 * s.2) - z * sqrt(s.1 * (1 - s.1) / s.2 + z * z / (4 * s.2 * s.2))) / (1 + z * z / s.2)),
               least(1, (s.1 + z * z / (2 * s.2) + z * sqrt(s.1 * (1 - s.1) / s.2 + z * z / (4 * s.2 * s.2))) / (1 + z * z / s.2))),
               [(pass_rate, greatest(probe_n, 1.)), (trusted_pass_rate, greatest(toFloat64(trusted), 1.)),
                (abuser_pass_rate, greatest(toFloat64(abusers), 1.))]) AS bounds
    FROM
    (
        SELECT dimension, sum(episodes) AS drawn, sum(passes) AS drawn_passed,
               sum(weight) * sum(weight) / sum(weight * weight) AS probe_n, least(1., sum(good) / sum(weight)) AS pass_rate
        FROM
        (
            SELECT dimension, subject, count() AS episodes, countIf(was_passed) AS passes, sum(1 / first_share) AS weight,
                   sumIf(1 / first_share, was_passed) AS good
            FROM
            (
                SELECT r.dimension AS dimension, r.subject AS subject, r.limit_name AS limit_name, r.ts AS started_at,
                       argMin(r.share, r.id) AS first_share, argMin(r.passed, r.id) AS was_passed
                FROM settled_refusals(from = {from:DateTime64(3, 'UTC')}, to = {to:DateTime64(3, 'UTC')},
                    as_of = {as_of:DateTime64(3, 'UTC')}, matures_s = {matures_s:Int64}) AS r
                INNER JOIN
                (
                    SELECT name, subject, started
                    FROM episodes(from = {from:DateTime64(3, 'UTC')}, to = {to:DateTime64(3, 'UTC')}) WHERE cause = 'limit'
                ) AS e ON e.name = r.limit_name AND e.subject = r.subject AND e.started = r.ts
                GROUP BY dimension, subject, limit_name, started_at
                HAVING first_share > 0 AND first_share <= 0.05
            )
            GROUP BY dimension, subject
        )
        GROUP BY dimension
    ) AS probed
    CROSS JOIN
    (
        SELECT countIf(NOT is_abuser) AS trusted, if(trusted = 0, 0, avgIf(rate, NOT is_abuser)) AS trusted_pass_rate,
               countIf(is_abuser) AS abusers, if(abusers = 0, 0, avgIf(rate, is_abuser)) AS abuser_pass_rate
        FROM
        (
            SELECT c.who AS who, max(l.abusive) AS is_abuser, max(c.established) AS is_established, avg(c.passed) AS rate
            FROM settled_refusals(from = {from:DateTime64(3, 'UTC')}, to = {to:DateTime64(3, 'UTC')},
                as_of = {as_of:DateTime64(3, 'UTC')}, matures_s = {matures_s:Int64}) AS c
            LEFT JOIN subject_labels(from = {from:DateTime64(3, 'UTC')}, as_of = {as_of:DateTime64(3, 'UTC')},
                matures_s = {matures_s:Int64}) AS l ON l.subject = c.who
            WHERE c.action = 'challenge'
            GROUP BY who
            HAVING is_abuser OR (is_established AND startsWith(who, 'user:'))
        )
    ) AS known
)
ORDER BY dimension;
