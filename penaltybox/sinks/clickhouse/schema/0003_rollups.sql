-- Exact roll-ups. Event time is cut into slots of ten minutes. What a slot's rows are (copies not merged yet included) is
-- told by a fingerprint that ClickHouse keeps with every part of `decisions`, in a projection: it is written with the rows
-- or not at all. A slot's roll-up is good while the fingerprint is the one it was built from; whatever changes a row
-- (late or repeated rows, merges, deletion by hand) changes the fingerprint, and the slot is read from the rows again
-- until it has been rebuilt. So nothing needs to be told of a change, and no crash can leave a wrong roll-up in use.

ALTER TABLE decisions ADD PROJECTION IF NOT EXISTS slots
(
    SELECT toStartOfTenMinutes(ts), count(), sum(cityHash64(incarnation, kafka_partition, kafka_offset, id)),
           min(ingested_at), max(ingested_at)
    GROUP BY toStartOfTenMinutes(ts)
);

-- Rows of before get it in the background; until then they are looked at one by one.
ALTER TABLE decisions MATERIALIZE PROJECTION slots;

-- Which build of a slot's roll-ups is the good one. It is written last. From `sealed_at` on it stays.
CREATE TABLE IF NOT EXISTS rollups
(
    slot        DateTime('UTC'),
    build       UInt64,
    rows        UInt64,
    fingerprint UInt64,
    sealed_at   DateTime64(3, 'UTC'),
    built_at    DateTime('UTC') DEFAULT now('UTC')
)
ENGINE = ReplacingMergeTree(build)
PARTITION BY toYYYYMM(slot)
ORDER BY slot
TTL built_at + INTERVAL 400 DAY DELETE;

-- `sealed_after_days`: a roll-up whose oldest row was stored so long ago is kept as it is, because rows are about to
-- expire. Must be less than the TTL of `decisions`.
CREATE TABLE IF NOT EXISTS rollup_settings
(
    name       String,
    value      Int64,
    changed_at DateTime64(3, 'UTC') DEFAULT now64(3, 'UTC')
)
ENGINE = ReplacingMergeTree(changed_at)
ORDER BY name;

INSERT INTO rollup_settings (name, value, changed_at) VALUES ('sealed_after_days', 80, '2020-01-01 00:00:00');

CREATE TABLE IF NOT EXISTS decisions_1m
(
    slot       DateTime('UTC')   CODEC(Delta, ZSTD(1)),
    build      UInt64            CODEC(ZSTD(1)),
    minute     DateTime('UTC')   CODEC(Delta, ZSTD(1)),
    source     LowCardinality(String),
    scenario   LowCardinality(String),
    dimension  LowCardinality(String),
    limit_name LowCardinality(String),
    action     LowCardinality(String),
    reason     LowCardinality(String),
    enforced   Bool,
    cached     Bool,
    decisions  UInt64,
    denials    UInt64,
    requests   Float64,
    first_at   DateTime64(3, 'UTC') CODEC(ZSTD(1)),
    last_at    DateTime64(3, 'UTC') CODEC(ZSTD(1)),
    built_at   DateTime('UTC')   DEFAULT now('UTC') CODEC(ZSTD(1))
)
ENGINE = MergeTree
PARTITION BY toYYYYMM(slot)
ORDER BY (slot, build, minute, scenario, dimension, limit_name, action, reason)
TTL built_at + INTERVAL 400 DAY DELETE;

CREATE TABLE IF NOT EXISTS denials_10m
(
    slot        DateTime('UTC')   CODEC(Delta, ZSTD(1)),
    build       UInt64            CODEC(ZSTD(1)),
    scenario    LowCardinality(String),
    route       LowCardinality(String),
    dimension   LowCardinality(String),
    limit_name  LowCardinality(String),
    subject     String            CODEC(ZSTD(1)),
    action      LowCardinality(String),
    reason      LowCardinality(String),
    enforced    Bool,
    records     UInt64,
    denials     UInt64,
    established UInt64,
    first_at    DateTime64(3, 'UTC') CODEC(ZSTD(1)),
    last_at     DateTime64(3, 'UTC') CODEC(ZSTD(1)),
    last_gap_ms Int64             CODEC(ZSTD(1)),
    built_at    DateTime('UTC')   DEFAULT now('UTC') CODEC(ZSTD(1))
)
ENGINE = MergeTree
PARTITION BY toYYYYMM(slot)
ORDER BY (slot, build, dimension, limit_name, subject)
TTL built_at + INTERVAL 90 DAY DELETE;

CREATE TABLE IF NOT EXISTS sightings_10m
(
    slot        DateTime('UTC')   CODEC(Delta, ZSTD(1)),
    build       UInt64            CODEC(ZSTD(1)),
    user        String            CODEC(ZSTD(1)),
    device      String            CODEC(ZSTD(1)),
    ip          String            CODEC(ZSTD(1)),
    ip_prefix   String            CODEC(ZSTD(1)),
    asn         String            CODEC(ZSTD(1)),
    api_key     String            CODEC(ZSTD(1)),
    others      Map(LowCardinality(String), String),
    action      LowCardinality(String),
    reason      LowCardinality(String),
    enforced    Bool,
    established Bool,
    over        Bool,
    records     UInt64,
    denials     UInt64,
    requests    Float64,
    first_at    DateTime64(3, 'UTC') CODEC(ZSTD(1)),
    last_at     DateTime64(3, 'UTC') CODEC(ZSTD(1)),
    built_at    DateTime('UTC')   DEFAULT now('UTC') CODEC(ZSTD(1))
)
ENGINE = MergeTree
PARTITION BY toYYYYMM(slot)
ORDER BY (slot, build, ip, user)
TTL built_at + INTERVAL 90 DAY DELETE;

-- Each slot that has rows or a roll-up: `current` says that the roll-up is good.
CREATE OR REPLACE VIEW slot_states AS
SELECT slot, sum(s.rows) AS rows, sum(s.fingerprint) AS fingerprint, max(s.oldest) AS oldest, max(s.newest) AS newest,
       max(s.build) AS build,
       build > 0 AND (max(s.sealed_at) < now64(3, 'UTC')
           OR (rows = sum(s.built_rows) AND fingerprint = sum(s.built_fingerprint))) AS current
FROM
(
    SELECT toStartOfTenMinutes(ts) AS slot, count() AS rows,
           sum(cityHash64(incarnation, kafka_partition, kafka_offset, id)) AS fingerprint,
           min(ingested_at) AS oldest, max(ingested_at) AS newest,
           toUInt64(0) AS build, toUInt64(0) AS built_rows, toUInt64(0) AS built_fingerprint,
           toDateTime64(0, 3, 'UTC') AS sealed_at
    FROM decisions
    WHERE toStartOfTenMinutes(ts) >= toStartOfTenMinutes({from:DateTime64(3, 'UTC')})
      AND toStartOfTenMinutes(ts) < {to:DateTime64(3, 'UTC')}
    GROUP BY slot
    UNION ALL
    SELECT r.slot, 0, 0, toDateTime64(0, 3, 'UTC'), toDateTime64(0, 3, 'UTC'), max(r.build), argMax(r.rows, r.build),
           argMax(r.fingerprint, r.build), argMax(r.sealed_at, r.build)
    FROM rollups AS r
    WHERE r.slot >= toStartOfTenMinutes({from:DateTime64(3, 'UTC')}) AND r.slot < {to:DateTime64(3, 'UTC')}
    GROUP BY r.slot
) AS s
GROUP BY slot;

-- How a period is read, as one value, so that both halves of a view go by the same: slots with their good build, and the
-- hours that have anything else in them.
CREATE OR REPLACE VIEW reading_plan AS
SELECT (groupArrayIf((slot, build), good), groupUniqArrayIf(toStartOfHour(slot), NOT good)) AS plan
FROM
(
    SELECT slot, build, current AND slot >= {from:DateTime64(3, 'UTC')} AND addMinutes(slot, 10) <= {to:DateTime64(3, 'UTC')} AS good
    FROM slot_states(from = {from:DateTime64(3, 'UTC')}, to = {to:DateTime64(3, 'UTC')})
);

-- Decisions per minute by source, scenario, charged dimension and limit, action and reason.
CREATE OR REPLACE VIEW decisions_per_minute AS
WITH (SELECT plan FROM reading_plan(from = {from:DateTime64(3, 'UTC')}, to = {to:DateTime64(3, 'UTC')})) AS plan
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
  AND toStartOfHour(ts) IN (SELECT arrayJoin(plan.2))
  AND toStartOfTenMinutes(ts) NOT IN (SELECT arrayJoin(plan.1).1)
GROUP BY slot, minute, source, scenario, dimension, limit_name, action, reason, enforced, cached
);

-- Everything that was refused (or challenged, or answered with a false success), per subject charged and ten minutes.
-- `last_gap_ms`: how long after its last denial an episode goes on.
CREATE OR REPLACE VIEW denied_subjects AS
WITH (SELECT plan FROM reading_plan(from = {from:DateTime64(3, 'UTC')}, to = {to:DateTime64(3, 'UTC')})) AS plan
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
  AND toStartOfHour(ts) IN (SELECT arrayJoin(plan.2))
  AND toStartOfTenMinutes(ts) NOT IN (SELECT arrayJoin(plan.1).1)
GROUP BY slot, scenario, route, dimension, limit_name, subject, action, reason, enforced
);

-- Who was seen with whom: one row per combination of user, device, address and so on, answer, and ten minutes. `over`:
-- the user's own limit was exceeded.
CREATE OR REPLACE VIEW sightings AS
WITH (SELECT plan FROM reading_plan(from = {from:DateTime64(3, 'UTC')}, to = {to:DateTime64(3, 'UTC')})) AS plan
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
  AND toStartOfHour(ts) IN (SELECT arrayJoin(plan.2))
  AND toStartOfTenMinutes(ts) NOT IN (SELECT arrayJoin(plan.1).1)
GROUP BY slot, user, device, ip, ip_prefix, asn, api_key, others, action, reason, enforced
);
