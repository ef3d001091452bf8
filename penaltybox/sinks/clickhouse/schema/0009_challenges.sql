-- A roll-up for the probe: every challenge by a limit, so that its estimate reads no decisions. A build of before has none:
-- `edition` of a build says which roll-ups it has (1: challenges too). One of edition 0 is good for all else, its slot's
-- challenges are read from the rows, and the role builds it anew, a few hours at a time, unless it is sealed.

CREATE TABLE IF NOT EXISTS challenges_10m
(
    slot        DateTime('UTC')   CODEC(Delta, ZSTD(1)),
    build       UInt64            CODEC(ZSTD(1)),
    ts          DateTime64(3, 'UTC') CODEC(ZSTD(1)),
    id          String            CODEC(ZSTD(1)),
    dimension   LowCardinality(String),
    limit_name  LowCardinality(String),
    subject     String            CODEC(ZSTD(1)),
    who         String            CODEC(ZSTD(1)),
    established Bool,
    share       Float64           CODEC(ZSTD(1)),
    first       Bool,
    built_at    DateTime('UTC')   DEFAULT now('UTC') CODEC(ZSTD(1))
)
ENGINE = MergeTree
PARTITION BY toYYYYMM(slot)
ORDER BY (slot, build, id)
TTL built_at + INTERVAL 90 DAY DELETE;

ALTER TABLE rollups ADD COLUMN IF NOT EXISTS edition UInt8 DEFAULT 0;

-- As before, with the edition of the build, and whether it is sealed.
CREATE OR REPLACE VIEW slot_states AS
SELECT slot, sum(s.rows) AS rows, sum(s.fingerprint) AS fingerprint, max(s.oldest) AS oldest, max(s.newest) AS newest,
       max(s.build) AS build, max(s.edition) AS edition, build > 0 AND max(s.sealed_at) < now64(3, 'UTC') AS sealed,
       build > 0 AND (sealed OR (rows = sum(s.built_rows) AND fingerprint = sum(s.built_fingerprint))) AS current
FROM
(
    SELECT toStartOfTenMinutes(ts) AS slot, count() AS rows,
           sum(cityHash64(incarnation, kafka_partition, kafka_offset, id)) AS fingerprint,
           min(ingested_at) AS oldest, max(ingested_at) AS newest,
           toUInt64(0) AS build, toUInt8(0) AS edition, toUInt64(0) AS built_rows, toUInt64(0) AS built_fingerprint,
           toDateTime64(0, 3, 'UTC') AS sealed_at
    FROM decisions
    WHERE toStartOfTenMinutes(ts) >= toStartOfTenMinutes({from:DateTime64(3, 'UTC')})
      AND toStartOfTenMinutes(ts) < {to:DateTime64(3, 'UTC')}
    GROUP BY slot
    UNION ALL
    SELECT r.slot, 0, 0, toDateTime64(0, 3, 'UTC'), toDateTime64(0, 3, 'UTC'), max(r.build), argMax(r.edition, r.build),
           argMax(r.rows, r.build), argMax(r.fingerprint, r.build), argMax(r.sealed_at, r.build)
    FROM rollups AS r
    WHERE r.slot >= toStartOfTenMinutes({from:DateTime64(3, 'UTC')}) AND r.slot < {to:DateTime64(3, 'UTC')}
    GROUP BY r.slot
) AS s
GROUP BY slot;

-- reading_pieces for roll-ups that not every build has.
CREATE OR REPLACE VIEW reading_pieces_of AS
WITH if({from:DateTime64(3, 'UTC')} + toIntervalHour(1) >= {to:DateTime64(3, 'UTC')}, 0,
         (SELECT argMax(value, changed_at) FROM rollup_settings WHERE name = 'few_rows')) AS few
SELECT (good, arrayMap(s -> s.1, arrayFilter((s, n) -> n <= few, bare, sums)),
        arrayMap(s -> s.1, arrayFilter((s, n) -> n > few, bare, sums))) AS plan
FROM
(
    SELECT groupArrayIf((slot, build), is_good) AS good, arrayReverseSort(groupArrayIf((slot, rows), NOT is_good)) AS bare,
           arrayCumSum(s -> s.2, bare) AS sums
    FROM
    (
        SELECT slot, rows, build, current AND edition >= {edition:UInt8} AND slot >= {from:DateTime64(3, 'UTC')}
            AND addMinutes(slot, 10) <= {to:DateTime64(3, 'UTC')} AS is_good
        FROM slot_states(from = {from:DateTime64(3, 'UTC')}, to = {to:DateTime64(3, 'UTC')})
    )
);

-- Enforced challenges by a limit. `share`: the probability with which the probe drew it, 0 if it did not. `first`: of the
-- refusals of this subject by this limit at this instant it has the lowest id. `who` was challenged: the user, else the
-- charged subject.
CREATE OR REPLACE VIEW challenges AS
WITH (SELECT plan FROM reading_pieces_of(from = {from:DateTime64(3, 'UTC')}, to = {to:DateTime64(3, 'UTC')}, edition = 1)) AS plan
SELECT * FROM
(
SELECT slot, ts, id, dimension, limit_name, subject, who, established, share, first
FROM challenges_10m
WHERE slot >= {from:DateTime64(3, 'UTC')} AND slot < {to:DateTime64(3, 'UTC')}
  AND (slot, build) IN (SELECT p.1, p.2 FROM (SELECT arrayJoin(plan.1) AS p))
UNION ALL
SELECT slot, ts, id, dimension, limit_name, subject, if(user != '', concat('user:', user), subject) AS who,
       ifNull(established, false) AS established, if(reason = 'over_limit', toFloat64OrZero(probe), 0) AS share, first
FROM
(
    SELECT toStartOfTenMinutes(ts) AS slot, ts, id, dimension, limit_name, subject, user, established, action, reason, probe,
           min(id) OVER (PARTITION BY limit_name, subject, ts) = id AS first
    FROM
    (
        SELECT ts, id, dimension, limit_name, subject, user, established, action, reason, enforced, attrs['probe'] AS probe
        FROM decisions
        WHERE toStartOfHour(ts) IN (SELECT toStartOfHour(arrayJoin(plan.2))) AND toStartOfTenMinutes(ts) IN (SELECT arrayJoin(plan.2))
        ORDER BY _part_index DESC LIMIT 1 BY toStartOfHour(ts), id
    )
    WHERE ts >= {from:DateTime64(3, 'UTC')} AND ts < {to:DateTime64(3, 'UTC')} AND enforced
      AND action IN ('challenge', 'deny', 'shadow') AND reason IN ('over_limit', 'local_fallback') AND limit_name != ''
)
WHERE action = 'challenge'
UNION ALL
SELECT slot, ts, id, dimension, limit_name, subject, if(user != '', concat('user:', user), subject) AS who,
       ifNull(established, false) AS established, if(reason = 'over_limit', toFloat64OrZero(probe), 0) AS share, first
FROM
(
    SELECT toStartOfTenMinutes(ts) AS slot, ts, id, dimension, limit_name, subject, user, established, action, reason,
           attrs['probe'] AS probe, min(id) OVER (PARTITION BY limit_name, subject, ts) = id AS first
    FROM decisions FINAL
    WHERE ts >= {from:DateTime64(3, 'UTC')} AND ts < {to:DateTime64(3, 'UTC')} AND enforced
      AND action IN ('challenge', 'deny', 'shadow') AND reason IN ('over_limit', 'local_fallback') AND limit_name != ''
      AND toStartOfHour(ts) IN (SELECT toStartOfHour(arrayJoin(plan.3)))
      AND toStartOfTenMinutes(ts) IN (SELECT arrayJoin(plan.3))
)
WHERE action = 'challenge'
);

-- Those old enough that they were passed by now or will not be. `passed`: an outcome challenge_passed refers to it in time.
CREATE OR REPLACE VIEW settled_challenges AS
WITH (SELECT toInt64(if({matures_s:Int64} >= 0, {matures_s:Int64}, max(matures_s))) FROM label_weights FINAL
      WHERE label = 'challenge_passed') AS horizon_s
SELECT c.ts AS ts, c.dimension AS dimension, c.limit_name AS limit_name, c.subject AS subject, c.who AS who,
       c.established AS established, c.share AS share, c.first AS first,
       p.ref != '' AND p.passed_at <= c.ts + toIntervalSecond(horizon_s) AS passed
FROM
(
    SELECT ts, id, toString(dimension) AS dimension, toString(limit_name) AS limit_name, subject, who, established, share, first
    FROM challenges(from = {from:DateTime64(3, 'UTC')}, to = {to:DateTime64(3, 'UTC')})
    WHERE ts < {as_of:DateTime64(3, 'UTC')} - toIntervalSecond(horizon_s)
) AS c
LEFT JOIN
(
    SELECT ref, min(ts) AS passed_at FROM outcomes FINAL
    WHERE label = 'challenge_passed' AND ref != '' AND ts >= {from:DateTime64(3, 'UTC')} AND ts < {as_of:DateTime64(3, 'UTC')}
    GROUP BY ref
) AS p ON p.ref = c.id;

-- FDR per dimension from the probe, as before (docs/analytics.md). An episode is in it if its first refusal was drawn: the chance of
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
            SELECT r.dimension AS dimension, r.subject AS subject, count() AS episodes, countIf(r.passed) AS passes,
                   sum(1 / r.share) AS weight, sumIf(1 / r.share, r.passed) AS good
            FROM settled_challenges(from = {from:DateTime64(3, 'UTC')}, to = {to:DateTime64(3, 'UTC')},
                as_of = {as_of:DateTime64(3, 'UTC')}, matures_s = {matures_s:Int64}) AS r
            INNER JOIN
            (
                SELECT name, subject, started
                FROM episodes(from = {from:DateTime64(3, 'UTC')}, to = {to:DateTime64(3, 'UTC')})
                WHERE cause = 'limit' AND subject IN
                    (SELECT subject FROM challenges(from = {from:DateTime64(3, 'UTC')}, to = {to:DateTime64(3, 'UTC')}) WHERE share > 0)
            ) AS e ON e.name = r.limit_name AND e.subject = r.subject AND e.started = r.ts
            WHERE r.first AND r.share > 0 AND r.share <= 0.05
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
            SELECT who, who IN (SELECT subject FROM label_marks(from = {from:DateTime64(3, 'UTC')}, as_of = {as_of:DateTime64(3, 'UTC')})
                       WHERE abuse) AS is_abuser, max(c.established) AS is_established, avg(c.passed) AS rate
            FROM settled_challenges(from = {from:DateTime64(3, 'UTC')}, to = {to:DateTime64(3, 'UTC')},
                as_of = {as_of:DateTime64(3, 'UTC')}, matures_s = {matures_s:Int64}) AS c
            GROUP BY who
            HAVING is_abuser OR (is_established AND startsWith(who, 'user:'))
        )
    ) AS known
)
ORDER BY dimension;

DROP VIEW IF EXISTS settled_refusals;
