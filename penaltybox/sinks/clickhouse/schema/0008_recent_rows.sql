-- The rows that no roll-up covers, cheaper. FINAL merges all parts that overlap them, column by column, though they are few.
-- Where they are few, copies are told by their id instead: of the rows of one hour and id the one inserted last counts, as
-- with FINAL (parts are numbered in that order). Both are sought within the slots that are read: an id that came with two
-- event times, in two slots of one hour, is two events here and one as soon as there is a roll-up.

-- `few_rows`: how many those are at most.
INSERT INTO rollup_settings (name, value, changed_at) VALUES ('few_rows', 500000, '2020-01-01 00:00:00');

-- How a period is read, as one value: slots with their good build; the latest other slots, as many as have `few_rows`
-- rows together; all others, which are read FINAL. So is a period of an hour or less: a build is one.
CREATE OR REPLACE VIEW reading_pieces AS
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
        SELECT slot, rows, build, current AND slot >= {from:DateTime64(3, 'UTC')} AND addMinutes(slot, 10) <= {to:DateTime64(3, 'UTC')} AS is_good
        FROM slot_states(from = {from:DateTime64(3, 'UTC')}, to = {to:DateTime64(3, 'UTC')})
    )
);

CREATE OR REPLACE VIEW decisions_per_minute AS
WITH (SELECT plan FROM reading_pieces(from = {from:DateTime64(3, 'UTC')}, to = {to:DateTime64(3, 'UTC')})) AS plan
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
FROM
(
    SELECT ts, source, scenario, dimension, limit_name, action, reason, enforced, cached, count, sample_weight
    FROM decisions
    WHERE toStartOfHour(ts) IN (SELECT toStartOfHour(arrayJoin(plan.2))) AND toStartOfTenMinutes(ts) IN (SELECT arrayJoin(plan.2))
    ORDER BY _part_index DESC LIMIT 1 BY toStartOfHour(ts), id
)
WHERE ts >= {from:DateTime64(3, 'UTC')} AND ts < {to:DateTime64(3, 'UTC')}
GROUP BY slot, minute, source, scenario, dimension, limit_name, action, reason, enforced, cached
UNION ALL
SELECT toStartOfTenMinutes(ts) AS slot, toStartOfMinute(ts) AS minute, source, scenario, dimension, limit_name, action, reason,
       enforced, cached, count() AS decisions, sum(count) AS denials, sum(count * sample_weight) AS requests,
       min(ts) AS first_at, max(ts) AS last_at
FROM decisions FINAL
WHERE ts >= {from:DateTime64(3, 'UTC')} AND ts < {to:DateTime64(3, 'UTC')}
  AND toStartOfHour(ts) IN (SELECT toStartOfHour(arrayJoin(plan.3)))
  AND toStartOfTenMinutes(ts) IN (SELECT arrayJoin(plan.3))
GROUP BY slot, minute, source, scenario, dimension, limit_name, action, reason, enforced, cached
);

CREATE OR REPLACE VIEW denied_subjects AS
WITH (SELECT plan FROM reading_pieces(from = {from:DateTime64(3, 'UTC')}, to = {to:DateTime64(3, 'UTC')})) AS plan
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
FROM
(
    SELECT ts, scenario, route, dimension, limit_name, subject, action, reason, enforced, count, established, window_s
    FROM decisions
    WHERE toStartOfHour(ts) IN (SELECT toStartOfHour(arrayJoin(plan.2))) AND toStartOfTenMinutes(ts) IN (SELECT arrayJoin(plan.2))
    ORDER BY _part_index DESC LIMIT 1 BY toStartOfHour(ts), id
)
WHERE ts >= {from:DateTime64(3, 'UTC')} AND ts < {to:DateTime64(3, 'UTC')} AND action IN ('challenge', 'deny', 'shadow')
GROUP BY slot, scenario, route, dimension, limit_name, subject, action, reason, enforced
UNION ALL
SELECT toStartOfTenMinutes(ts) AS slot, scenario, route, dimension, limit_name, subject, action, reason, enforced,
       count() AS records, sum(count) AS denials, sumIf(count, ifNull(established, false)) AS established,
       min(ts) AS first_at, max(ts) AS last_at,
       argMax(greatest(least(ifNull(window_s, 0), 1000000000) * 1000, 600000),
           (ts, greatest(least(ifNull(window_s, 0), 1000000000) * 1000, 600000))) AS last_gap_ms
FROM decisions FINAL
WHERE ts >= {from:DateTime64(3, 'UTC')} AND ts < {to:DateTime64(3, 'UTC')} AND action IN ('challenge', 'deny', 'shadow')
  AND toStartOfHour(ts) IN (SELECT toStartOfHour(arrayJoin(plan.3)))
  AND toStartOfTenMinutes(ts) IN (SELECT arrayJoin(plan.3))
GROUP BY slot, scenario, route, dimension, limit_name, subject, action, reason, enforced
);

CREATE OR REPLACE VIEW sightings AS
WITH (SELECT plan FROM reading_pieces(from = {from:DateTime64(3, 'UTC')}, to = {to:DateTime64(3, 'UTC')})) AS plan
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
FROM
(
    SELECT ts, user, device, ip, ip_prefix, attrs, api_key, others, action, reason, enforced, established, violated, count,
           sample_weight
    FROM decisions
    WHERE toStartOfHour(ts) IN (SELECT toStartOfHour(arrayJoin(plan.2))) AND toStartOfTenMinutes(ts) IN (SELECT arrayJoin(plan.2))
    ORDER BY _part_index DESC LIMIT 1 BY toStartOfHour(ts), id
)
WHERE ts >= {from:DateTime64(3, 'UTC')} AND ts < {to:DateTime64(3, 'UTC')}
GROUP BY slot, user, device, ip, ip_prefix, asn, api_key, others, action, reason, enforced
UNION ALL
SELECT toStartOfTenMinutes(ts) AS slot, user, device, ip, ip_prefix, attrs['asn'] AS asn, api_key, others, action, reason, enforced,
       max(ifNull(established, false)) AS established,
       max(arrayExists(v -> has(splitByChar('+', splitByChar(':', toString(v))[1]), 'user'), violated)) AS over,
       count() AS records, sum(count) AS denials, sum(count * sample_weight) AS requests,
       min(ts) AS first_at, max(ts) AS last_at
FROM decisions FINAL
WHERE ts >= {from:DateTime64(3, 'UTC')} AND ts < {to:DateTime64(3, 'UTC')}
  AND toStartOfHour(ts) IN (SELECT toStartOfHour(arrayJoin(plan.3)))
  AND toStartOfTenMinutes(ts) IN (SELECT arrayJoin(plan.3))
GROUP BY slot, user, device, ip, ip_prefix, asn, api_key, others, action, reason, enforced
);
