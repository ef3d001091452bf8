-- Raw events, one row per event id: Replacing tables whose sorting keys end in the event id, read with FINAL.
-- TTLs run on the ingestion time: replayed old events stay as long as new ones.

CREATE TABLE IF NOT EXISTS decisions
(
    ts              DateTime64(3, 'UTC')   CODEC(Delta, ZSTD(1)),
    logged_at       DateTime64(3, 'UTC')   CODEC(Delta, ZSTD(1)),
    ingested_at     DateTime64(3, 'UTC')   DEFAULT now64(3, 'UTC') CODEC(Delta, ZSTD(1)),
    id              String                 CODEC(ZSTD(1)),
    source          LowCardinality(String),
    scenario        LowCardinality(String),
    route           LowCardinality(String),
    action          LowCardinality(String),
    reason          LowCardinality(String),
    violated        Array(LowCardinality(String)),
    dimension       LowCardinality(String),
    limit_name      LowCardinality(String),
    subject         String                 CODEC(ZSTD(1)),
    user            String                 CODEC(ZSTD(1)),
    device          String                 CODEC(ZSTD(1)),
    ip              String                 CODEC(ZSTD(1)),
    ip_prefix       String                 CODEC(ZSTD(1)),
    api_key         String                 CODEC(ZSTD(1)),
    others          Map(LowCardinality(String), String),
    established     Nullable(Bool),
    status          Nullable(UInt16),
    limit_value     Nullable(Int64),
    window_s        Nullable(Int64),
    remaining       Nullable(Int64),
    retry_after_s   Nullable(Int64),
    cost            UInt32,
    enforced        Bool,
    count           UInt32,
    cached          Bool,
    sample_weight   Float64,
    attrs           Map(LowCardinality(String), String),
    incarnation     LowCardinality(String),
    kafka_partition Int32,
    kafka_offset    Int64                  CODEC(Delta, ZSTD(1)),
    stored_through  Int64                  CODEC(Delta, ZSTD(1)),
    PROJECTION watermarks (SELECT incarnation, kafka_partition, max(stored_through) GROUP BY incarnation, kafka_partition),
    INDEX ix_subject subject TYPE bloom_filter(0.01) GRANULARITY 4,
    INDEX ix_user    user    TYPE bloom_filter(0.01) GRANULARITY 4,
    INDEX ix_ip      ip      TYPE bloom_filter(0.01) GRANULARITY 4
)
ENGINE = ReplacingMergeTree
PARTITION BY toYYYYMM(ts)
ORDER BY (toStartOfHour(ts), id)
TTL toDateTime(ingested_at) + INTERVAL 90 DAY DELETE
SETTINGS deduplicate_merge_projection_mode = 'rebuild';

CREATE TABLE IF NOT EXISTS outcomes
(
    ts              DateTime64(3, 'UTC')   CODEC(Delta, ZSTD(1)),
    logged_at       DateTime64(3, 'UTC')   CODEC(Delta, ZSTD(1)),
    ingested_at     DateTime64(3, 'UTC')   DEFAULT now64(3, 'UTC') CODEC(Delta, ZSTD(1)),
    id              String                 CODEC(ZSTD(1)),
    label           LowCardinality(String),
    subjects        Array(String)          CODEC(ZSTD(1)),
    ref             String                 CODEC(ZSTD(1)),
    incarnation     LowCardinality(String),
    kafka_partition Int32,
    kafka_offset    Int64                  CODEC(Delta, ZSTD(1)),
    stored_through  Int64                  CODEC(Delta, ZSTD(1)),
    PROJECTION watermarks (SELECT incarnation, kafka_partition, max(stored_through) GROUP BY incarnation, kafka_partition)
)
ENGINE = ReplacingMergeTree
PARTITION BY toYYYYMM(ts)
ORDER BY (toStartOfHour(ts), id)
TTL toDateTime(ingested_at) + INTERVAL 400 DAY DELETE
SETTINGS deduplicate_merge_projection_mode = 'rebuild';

CREATE TABLE IF NOT EXISTS penalties
(
    ts              DateTime64(3, 'UTC')   CODEC(Delta, ZSTD(1)),
    logged_at       DateTime64(3, 'UTC')   CODEC(Delta, ZSTD(1)),
    ingested_at     DateTime64(3, 'UTC')   DEFAULT now64(3, 'UTC') CODEC(Delta, ZSTD(1)),
    id              String                 CODEC(ZSTD(1)),
    subject         String                 CODEC(ZSTD(1)),
    dimension       LowCardinality(String),
    from_rung       LowCardinality(String),
    to_rung         LowCardinality(String),
    from_ms         Nullable(Int64),
    to_ms           Nullable(Int64),
    action          LowCardinality(String),
    until           Nullable(DateTime64(3, 'UTC')),
    rule            LowCardinality(String),
    policy_version  LowCardinality(String),
    evidence        String                 CODEC(ZSTD(1)),
    trigger_id      String                 CODEC(ZSTD(1)),
    seq             Int64,
    origin          LowCardinality(String),
    actor           LowCardinality(String),
    note            String                 CODEC(ZSTD(1)),
    shadow          Bool,
    late            Bool,
    incarnation     LowCardinality(String),
    kafka_partition Int32,
    kafka_offset    Int64                  CODEC(Delta, ZSTD(1)),
    stored_through  Int64                  CODEC(Delta, ZSTD(1)),
    PROJECTION watermarks (SELECT incarnation, kafka_partition, max(stored_through) GROUP BY incarnation, kafka_partition),
    INDEX ix_subject subject TYPE bloom_filter(0.01) GRANULARITY 4
)
ENGINE = ReplacingMergeTree
PARTITION BY toYYYYMM(ts)
ORDER BY (toStartOfHour(ts), id)
TTL toDateTime(ingested_at) + INTERVAL 400 DAY DELETE
SETTINGS deduplicate_merge_projection_mode = 'rebuild';

-- A dead letter has no id of its own: it is the record at a place of a topic's life, and its bytes.
CREATE TABLE IF NOT EXISTS dead_letters
(
    ts              DateTime64(3, 'UTC')   CODEC(Delta, ZSTD(1)),
    logged_at       DateTime64(3, 'UTC')   CODEC(Delta, ZSTD(1)),
    ingested_at     DateTime64(3, 'UTC')   DEFAULT now64(3, 'UTC') CODEC(Delta, ZSTD(1)),
    id              String                 CODEC(ZSTD(1)),
    reason          LowCardinality(String),
    detail          String                 CODEC(ZSTD(1)),
    source_topic    LowCardinality(String),
    source_partition Int32,
    source_offset   Int64                  CODEC(ZSTD(1)),
    raw             String                 CODEC(ZSTD(1)),
    incarnation     LowCardinality(String),
    kafka_partition Int32,
    kafka_offset    Int64                  CODEC(Delta, ZSTD(1)),
    stored_through  Int64                  CODEC(Delta, ZSTD(1)),
    PROJECTION watermarks (SELECT incarnation, kafka_partition, max(stored_through) GROUP BY incarnation, kafka_partition)
)
ENGINE = ReplacingMergeTree
PARTITION BY toYYYYMM(ts)
ORDER BY id
TTL toDateTime(ingested_at) + INTERVAL 30 DAY DELETE
SETTINGS deduplicate_merge_projection_mode = 'rebuild';

-- What a label is worth (1 = certainly legitimate), how long after a denial it may come, whether it proves abuse, and
-- whether only a limited subject can get it. These are the settings of the false-positive queries: change them with an
-- INSERT of the label's new row.
CREATE TABLE IF NOT EXISTS label_weights
(
    label         String,
    weight        Float64,
    matures_s     Int64,
    abuse         Bool,
    after_limit   Bool,
    changed_at    DateTime64(3, 'UTC') DEFAULT now64(3, 'UTC')
)
ENGINE = ReplacingMergeTree(changed_at)
ORDER BY label;

INSERT INTO label_weights (label, weight, matures_s, abuse, after_limit, changed_at) VALUES
    ('manual_unban',      0.98, 2592000, false, true,  '2020-01-01 00:00:00'),
    ('appeal_granted',    0.95, 2592000, false, true,  '2020-01-01 00:00:00'),
    ('payment_ok',        0.90, 86400,   false, false, '2020-01-01 00:00:00'),
    ('identity_verified', 0.90, 604800,  false, false, '2020-01-01 00:00:00'),
    ('duplicate_request', 0.85, 86400,   false, false, '2020-01-01 00:00:00'),
    ('challenge_passed',  0.70, 3600,    false, true,  '2020-01-01 00:00:00'),
    ('confirmed_abuse',   0,    0,       true,  false, '2020-01-01 00:00:00'),
    ('chargeback',        0,    0,       true,  false, '2020-01-01 00:00:00');
