-- Subjects as numbers. The analyses that group, join and look up a million subjects did it by their text; now by `key`, the
-- sipHash64 of the canonical subject (0: there is none). docs/decisions/0034 says what a collision would do and how likely
-- it is. Old rows get their keys in the background; until then they are made when they are read.

ALTER TABLE sightings_10m
    ADD COLUMN IF NOT EXISTS user_key UInt64 DEFAULT if(user = '', 0, sipHash64(concat('user:', user))),
    ADD COLUMN IF NOT EXISTS device_key UInt64 DEFAULT if(device = '', 0, sipHash64(concat('device:', device))),
    ADD COLUMN IF NOT EXISTS ip_key UInt64 DEFAULT if(ip = '', 0, sipHash64(concat('ip:', ip))),
    ADD COLUMN IF NOT EXISTS api_key_key UInt64 DEFAULT if(api_key = '', 0, sipHash64(concat('api_key:', api_key)));

ALTER TABLE sightings_10m MATERIALIZE COLUMN user_key, MATERIALIZE COLUMN device_key, MATERIALIZE COLUMN ip_key,
    MATERIALIZE COLUMN api_key_key SETTINGS mutations_sync = 0;

-- `subject_dimension`: what stands before the colon; a denial whose subject is not known stands under `dimension:`.
ALTER TABLE denials_10m
    ADD COLUMN IF NOT EXISTS subject_key UInt64 DEFAULT sipHash64(if(subject = '', concat(dimension, ':'), subject)),
    ADD COLUMN IF NOT EXISTS subject_dimension LowCardinality(String)
        DEFAULT if(subject = '', toString(dimension), substring(subject, 1, position(subject, ':') - 1));

ALTER TABLE denials_10m MATERIALIZE COLUMN subject_key, MATERIALIZE COLUMN subject_dimension SETTINGS mutations_sync = 0;

ALTER TABLE outcomes ADD COLUMN IF NOT EXISTS subject_keys Array(UInt64) DEFAULT arrayMap(s -> sipHash64(s), subjects);

ALTER TABLE outcomes MATERIALIZE COLUMN subject_keys SETTINGS mutations_sync = 0;

-- Who was seen before the time of maturity, once each. `code`: user 1, device 2, ip 3, api_key 4; another dimension is 0 and
-- named by `other`. Rows that no roll-up covers are read as they are: a copy of an event adds nobody.
CREATE OR REPLACE VIEW seen_keys AS
WITH (SELECT plan FROM reading_slots(from = {from:DateTime64(3, 'UTC')}, to = {to:DateTime64(3, 'UTC')})) AS plan,
     assumeNotNull((SELECT mature_before FROM maturity(from = {from:DateTime64(3, 'UTC')}, as_of = {as_of:DateTime64(3, 'UTC')}, matures_s = {matures_s:Int64}))) AS mature_before
SELECT key, max(place) AS code, '' AS other FROM
(
    SELECT key, place
    FROM sightings_10m ARRAY JOIN [user_key, device_key, ip_key, api_key_key] AS key, [1, 2, 3, 4] AS place
    WHERE slot >= {from:DateTime64(3, 'UTC')} AND slot < {to:DateTime64(3, 'UTC')} AND first_at < mature_before AND key != 0
      AND (slot, build) IN (SELECT p.1, p.2 FROM (SELECT arrayJoin(plan.1) AS p))
    UNION ALL
    SELECT sipHash64(concat(['user', 'device', 'ip', 'api_key'][place], ':', value)), place
    FROM decisions ARRAY JOIN [user, device, ip, api_key] AS value, [1, 2, 3, 4] AS place
    WHERE ts >= {from:DateTime64(3, 'UTC')} AND ts < {to:DateTime64(3, 'UTC')} AND ts < mature_before AND value != ''
      AND toStartOfHour(ts) IN (SELECT toStartOfHour(arrayJoin(plan.2))) AND toStartOfTenMinutes(ts) IN (SELECT arrayJoin(plan.2))
)
GROUP BY key
UNION ALL
SELECT key, 0, max(named.other) FROM
(
    SELECT sipHash64(concat(name, ':', value)) AS key, toString(name) AS other
    FROM sightings_10m ARRAY JOIN mapKeys(others) AS name, mapValues(others) AS value
    WHERE slot >= {from:DateTime64(3, 'UTC')} AND slot < {to:DateTime64(3, 'UTC')} AND first_at < mature_before
      AND (slot, build) IN (SELECT p.1, p.2 FROM (SELECT arrayJoin(plan.1) AS p)) AND notEmpty(others) AND value != ''
    UNION ALL
    SELECT sipHash64(concat(name, ':', value)), toString(name)
    FROM decisions ARRAY JOIN mapKeys(others) AS name, mapValues(others) AS value
    WHERE ts >= {from:DateTime64(3, 'UTC')} AND ts < {to:DateTime64(3, 'UTC')} AND ts < mature_before
      AND notEmpty(others) AND value != ''
      AND toStartOfHour(ts) IN (SELECT toStartOfHour(arrayJoin(plan.2))) AND toStartOfTenMinutes(ts) IN (SELECT arrayJoin(plan.2))
) AS named
GROUP BY key;

-- What episodes are made of: denials and penalties as one number, 64 bits each of limit or rule, beginning, end, and the time
-- after which an episode has ended. A copy of an event changes no episode, so here too rows are read as they are.
CREATE OR REPLACE VIEW limited_pieces AS
WITH (SELECT plan FROM reading_slots(from = {from:DateTime64(3, 'UTC')}, to = {to:DateTime64(3, 'UTC')})) AS plan
SELECT key, dimension, transform(dimension, ['user', 'device', 'ip', 'api_key'], [1, 2, 3, 4], 0) AS code,
       bitOr(bitShiftLeft(toUInt256(name), 192), bitOr(bitShiftLeft(toUInt256(toUnixTimestamp64Milli(first_at)), 128),
           bitOr(bitShiftLeft(toUInt256(toUnixTimestamp64Milli(last_at)), 64), toUInt256(gap_ms)))) AS piece
FROM
(
SELECT subject_key AS key, toString(subject_dimension) AS dimension, sipHash64('limit', toString(limit_name)) AS name,
       first_at, last_at, last_gap_ms AS gap_ms
FROM denials_10m
WHERE slot >= {from:DateTime64(3, 'UTC')} AND slot < {to:DateTime64(3, 'UTC')}
  AND (slot, build) IN (SELECT p.1, p.2 FROM (SELECT arrayJoin(plan.1) AS p))
  AND enforced AND reason IN ('over_limit', 'local_fallback') AND limit_name != ''
UNION ALL
SELECT sipHash64(if(subject = '', concat(dimension, ':'), subject)),
       if(subject = '', toString(dimension), substring(subject, 1, position(subject, ':') - 1)),
       sipHash64('limit', toString(limit_name)), ts, ts,
       greatest(least(ifNull(window_s, 0), 1000000000) * 1000, 600000)
FROM decisions
WHERE ts >= {from:DateTime64(3, 'UTC')} AND ts < {to:DateTime64(3, 'UTC')} AND action IN ('challenge', 'deny', 'shadow')
  AND enforced AND reason IN ('over_limit', 'local_fallback') AND limit_name != ''
  AND toStartOfHour(ts) IN (SELECT toStartOfHour(arrayJoin(plan.2))) AND toStartOfTenMinutes(ts) IN (SELECT arrayJoin(plan.2))
UNION ALL
SELECT sipHash64(subject), substring(subject, 1, position(subject, ':') - 1), sipHash64('rule', toString(rule)), ts, ts,
       if(isNull(to_ms), 1000000000000, greatest(assumeNotNull(to_ms), 600000))
FROM penalties FINAL
WHERE ts >= {from:DateTime64(3, 'UTC')} AND ts < {to:DateTime64(3, 'UTC')}
  AND NOT shadow AND origin = 'rule' AND action IN ('challenge', 'deny')
);

-- label_marks by key.
CREATE OR REPLACE VIEW key_marks AS
WITH (SELECT (groupArray(label), groupArray(abuse)) FROM (SELECT label, abuse FROM label_weights FINAL ORDER BY label)) AS kind
SELECT arrayJoin(o.subject_keys) AS key, toUnixTimestamp64Milli(o.ts) * 65536 + indexOf(kind.1, toString(o.label)) AS mark,
       kind.2[indexOf(kind.1, toString(o.label))] AS abuse
FROM outcomes AS o FINAL
WHERE o.ts < {as_of:DateTime64(3, 'UTC')} AND has(kind.1, toString(o.label))
  AND (o.ts >= {from:DateTime64(3, 'UTC')} OR kind.2[indexOf(kind.1, toString(o.label))]);

-- Per subject that was seen, limited or has a label: its mature and immature episodes, and what its labels say of it, as
-- judged_episodes does. `p`: by labels that an unlimited subject can get too; `told`: it has such a label. Pieces in the order
-- of their beginnings and in that of their ends, as in `episodes`: `firsts` are limit and beginning, `lasts` limit, end and gap.
CREATE OR REPLACE VIEW judged_keys AS
WITH (SELECT (groupArray(label), groupArray(weight), groupArray(horizon_ms), groupArray(after_limit), groupArray(abuse)) FROM
         (SELECT label, weight, if({matures_s:Int64} >= 0, {matures_s:Int64}, matures_s) * 1000 AS horizon_ms, after_limit, abuse
          FROM label_weights FINAL ORDER BY label)) AS kind,
     assumeNotNull((SELECT toUnixTimestamp64Milli(mature_before) FROM maturity(from = {from:DateTime64(3, 'UTC')}, as_of = {as_of:DateTime64(3, 'UTC')}, matures_s = {matures_s:Int64}))) AS mature_before_ms
SELECT code, other, seen,
       toUInt64(arrayCount(mature)) AS n, toUInt64(length(mature)) - n AS young,
       if(abusive, n, toUInt64(arrayCount((k, m) -> m AND notEmpty(k), kinds, mature))) AS known,
       if(abusive, 0, arraySum((k, m) -> if(m, 1 - arrayProduct(arrayPushBack(arrayMap(i -> 1 - kind.2[i], k), 1)), 0), kinds, mature)) AS good,
       if(abusive, 0, always) AS p, abusive OR always > 0 AS told
FROM
(
    SELECT code, other, seen, abusive,
           1 - arrayProduct(arrayPushBack(arrayMap(i -> if(kind.4[i] OR kind.2[i] <= 0, 1, 1 - kind.2[i]), arrayDistinct(arrayMap(m -> m % 65536, marks))), 1)) AS always,
           arrayMap(e -> e < mature_before_ms, ends) AS mature,
           arrayMap((s, e) -> arrayDistinct(arrayMap(m -> m % 65536, arrayFilter(m -> kind.2[m % 65536] > 0
               AND intDiv(m, 65536) >= s AND intDiv(m, 65536) <= e + kind.3[m % 65536], marks))), starts, ends) AS kinds
    FROM
    (
        SELECT code, other, seen, marks, abusive,
               arrayMap(x -> toInt64(x), arrayFilter((x, b) -> b, firsts, breaks)) AS starts,
               arrayMap(x -> toInt64(bitShiftRight(x, 64)), arrayFilter((x, b) -> b, lasts, arrayRotateLeft(breaks, 1))) AS ends
        FROM
        (
            SELECT code, other, seen, marks, abusive, firsts, lasts,
                   arrayMap((x, y, i) -> i = 1 OR x > bitShiftRight(y, 64) + bitAnd(y, 18446744073709551615),
                       firsts, arrayPopBack(arrayPushFront(lasts, toUInt256(0))), arrayEnumerate(firsts)) AS breaks
            FROM
            (
                SELECT max(u.code) AS code, max(u.other) AS other, max(u.seen) AS seen, max(u.abuse) AS abusive,
                       groupArrayIf(u.mark, u.mark > 0) AS marks, groupArrayIf(u.piece, u.piece > 0) AS pieces,
                       arraySort(arrayMap(x -> toUInt128(bitShiftRight(x, 128)), pieces)) AS firsts,
                       arraySort(arrayMap(x -> bitOr(bitShiftLeft(bitShiftRight(x, 192), 128), toUInt256(toUInt128(x))), pieces)) AS lasts
                FROM
                (
                    SELECT key, code, other, true AS seen, toUInt256(0) AS piece, toInt64(0) AS mark, false AS abuse
                    FROM seen_keys(from = {from:DateTime64(3, 'UTC')}, to = {to:DateTime64(3, 'UTC')}, as_of = {as_of:DateTime64(3, 'UTC')}, matures_s = {matures_s:Int64})
                    UNION ALL
                    SELECT key, code, if(code = 0, dimension, ''), false, piece, 0, false
                    FROM limited_pieces(from = {from:DateTime64(3, 'UTC')}, to = {to:DateTime64(3, 'UTC')})
                    UNION ALL
                    SELECT key, 0, '', false, 0, mark, abuse FROM key_marks(from = {from:DateTime64(3, 'UTC')}, as_of = {as_of:DateTime64(3, 'UTC')})
                ) AS u
                GROUP BY u.key
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
                SELECT if(code = 0, other, ['user', 'device', 'ip', 'api_key'][code]) AS dimension,
                       sum(n) AS episodes, sum(young) AS immature, sum(known) AS labelled, sum(good) AS legitimate,
                       sum(if(told, n, known)) AS fdr_labelled, sum(if(told, greatest(p * n, good), good)) AS fdr_legitimate,
                       sum(pow(if(told, n, known), 2)) AS fdr_squares,
                       sumIf(p, seen) AS legitimate_seen, sumIf(p, seen AND n > 0) AS legitimate_limited,
                       sumIf(p, seen AND n = 0) AS legitimate_unlimited,
                       countIf(seen AND n > 0) AS limited_seen, countIf(seen AND n = 0) AS unlimited_seen,
                       countIf(seen AND n > 0 AND told) AS limited_labelled, countIf(seen AND n = 0 AND told) AS unlimited_labelled,
                       sumIf(p * p, seen AND n > 0) AS limited_squares, sumIf(p * p, seen AND n = 0) AS unlimited_squares
                FROM judged_keys(from = {from:DateTime64(3, 'UTC')}, to = {to:DateTime64(3, 'UTC')}, as_of = {as_of:DateTime64(3, 'UTC')}, matures_s = {matures_s:Int64})
                GROUP BY code, other
                HAVING episodes + immature > 0 OR legitimate_seen > 0
            )
        )
    )
)
ORDER BY dimension;

DROP VIEW IF EXISTS judged_subjects;

-- Episodes per address.
CREATE OR REPLACE VIEW ip_episodes_of AS
SELECT key, max(l.code) AS code, groupArray(l.piece) AS pieces,
       arraySort(arrayMap(x -> toUInt128(bitShiftRight(x, 128)), pieces)) AS firsts,
       arraySort(arrayMap(x -> bitOr(bitShiftLeft(bitShiftRight(x, 192), 128), toUInt256(toUInt128(x))), pieces)) AS lasts,
       arrayCount((x, y, i) -> i = 1 OR x > bitShiftRight(y, 64) + bitAnd(y, 18446744073709551615),
           firsts, arrayPopBack(arrayPushFront(lasts, toUInt256(0))), arrayEnumerate(firsts)) AS episodes
FROM limited_pieces(from = {from:DateTime64(3, 'UTC')}, to = {to:DateTime64(3, 'UTC')}) AS l
WHERE l.code = 3
GROUP BY key;

-- What `nat` needs of sightings.
CREATE OR REPLACE VIEW keyed_sightings AS
WITH (SELECT plan FROM reading_pieces(from = {from:DateTime64(3, 'UTC')}, to = {to:DateTime64(3, 'UTC')})) AS plan
SELECT * FROM
(
SELECT user_key, ip, ip_prefix, asn, enforced AND action IN ('challenge', 'deny', 'shadow') AS denied, established, over, requests
FROM sightings_10m
WHERE slot >= {from:DateTime64(3, 'UTC')} AND slot < {to:DateTime64(3, 'UTC')}
  AND (slot, build) IN (SELECT p.1, p.2 FROM (SELECT arrayJoin(plan.1) AS p))
UNION ALL
SELECT if(user = '', 0, sipHash64(concat('user:', user))), ip, ip_prefix, attrs['asn'] AS asn, enforced AND action IN ('challenge', 'deny', 'shadow'),
       ifNull(established, false), arrayExists(v -> has(splitByChar('+', splitByChar(':', toString(v))[1]), 'user'), violated), count * sample_weight
FROM
(
    SELECT ts, user, ip, ip_prefix, attrs, action, enforced, established, violated, count, sample_weight
    FROM decisions
    WHERE toStartOfHour(ts) IN (SELECT toStartOfHour(arrayJoin(plan.2))) AND toStartOfTenMinutes(ts) IN (SELECT arrayJoin(plan.2))
    ORDER BY _part_index DESC LIMIT 1 BY toStartOfHour(ts), id
)
WHERE ts >= {from:DateTime64(3, 'UTC')} AND ts < {to:DateTime64(3, 'UTC')}
UNION ALL
SELECT if(user = '', 0, sipHash64(concat('user:', user))), ip, ip_prefix, attrs['asn'] AS asn, enforced AND action IN ('challenge', 'deny', 'shadow'),
       ifNull(established, false), arrayExists(v -> has(splitByChar('+', splitByChar(':', toString(v))[1]), 'user'), violated), count * sample_weight
FROM decisions FINAL
WHERE ts >= {from:DateTime64(3, 'UTC')} AND ts < {to:DateTime64(3, 'UTC')}
  AND toStartOfHour(ts) IN (SELECT toStartOfHour(arrayJoin(plan.3)))
  AND toStartOfTenMinutes(ts) IN (SELECT arrayJoin(plan.3))
);

-- Users who exceeded a limit of theirs or were punished.
CREATE OR REPLACE VIEW over_keys AS
WITH (SELECT plan FROM reading_slots(from = {from:DateTime64(3, 'UTC')}, to = {to:DateTime64(3, 'UTC')})) AS plan
SELECT user_key AS key
FROM sightings_10m
WHERE slot >= {from:DateTime64(3, 'UTC')} AND slot < {to:DateTime64(3, 'UTC')} AND over
  AND (slot, build) IN (SELECT p.1, p.2 FROM (SELECT arrayJoin(plan.1) AS p))
UNION ALL
SELECT sipHash64(concat('user:', user))
FROM decisions
WHERE ts >= {from:DateTime64(3, 'UTC')} AND ts < {to:DateTime64(3, 'UTC')}
  AND toStartOfHour(ts) IN (SELECT toStartOfHour(arrayJoin(plan.2))) AND toStartOfTenMinutes(ts) IN (SELECT arrayJoin(plan.2))
  AND arrayExists(v -> has(splitByChar('+', splitByChar(':', toString(v))[1]), 'user'), violated)
UNION ALL
SELECT sipHash64(subject) FROM penalties FINAL
WHERE dimension = 'user' AND NOT shadow AND origin = 'rule' AND action IN ('challenge', 'deny')
  AND ts < {to:DateTime64(3, 'UTC')} AND (isNull(until) OR until >= {from:DateTime64(3, 'UTC')});

-- Shared addresses, as before.
CREATE OR REPLACE VIEW nat AS
WITH 1.959963984540054 AS z
SELECT p.place AS place, p.prefix AS ip_prefix, p.requests AS requests, p.users AS users, p.established_users AS established_users,
       if(p.established_users = 0, 0, pow(p.established_requests, 2) / p.established_squares) AS n_eff,
       p.users_over_limit AS users_over_limit, e.ip_episodes AS ip_episodes,
       p.users_over_limit = 0 AND n_eff >= 3 AS nat_attributable,
       p.denied_users AS denied_users, p.denied_within_limit AS denied_within_limit,
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
    SELECT place, max(u.prefix) AS prefix, sum(u.weight) AS requests, countIf(u.user_key != 0) AS users,
           countIf(u.is_established) AS established_users, sumIf(u.weight, u.is_established) AS established_requests,
           sumIf(u.weight * u.weight, u.is_established) AS established_squares, countIf(u.is_over) AS users_over_limit,
           countIf(u.is_denied AND u.user_key != 0) AS denied_users,
           countIf(u.is_denied AND u.user_key != 0 AND NOT u.is_over) AS denied_within_limit
    FROM
    (
        SELECT if({by:String} = 'ip', ip, if({by:String} = 'prefix', s.ip_prefix, s.asn)) AS place, user_key,
               max(s.ip_prefix) AS prefix, sum(s.requests) AS weight, user_key != 0 AND max(s.established) AS is_established,
               max(s.denied) AS is_denied,
               user_key != 0 AND user_key IN (SELECT key FROM over_keys(from = {from:DateTime64(3, 'UTC')}, to = {to:DateTime64(3, 'UTC')})) AS is_over
        FROM keyed_sightings(from = {from:DateTime64(3, 'UTC')}, to = {to:DateTime64(3, 'UTC')}) AS s
        WHERE place != ''
        GROUP BY place, user_key
    ) AS u
    GROUP BY place
) AS p
LEFT JOIN
(
    SELECT if({by:String} = 'ip', key, sipHash64(seen.place)) AS place_key, toUInt64(sum(limited.episodes)) AS ip_episodes
    FROM ip_episodes_of(from = {from:DateTime64(3, 'UTC')}, to = {to:DateTime64(3, 'UTC')}) AS limited
    LEFT JOIN
    (
        SELECT DISTINCT sipHash64(concat('ip:', ip)) AS ip_key, if({by:String} = 'prefix', ip_prefix, asn) AS place
        FROM keyed_sightings(from = {from:DateTime64(3, 'UTC')}, to = {to:DateTime64(3, 'UTC')}) WHERE {by:String} != 'ip' AND ip != ''
    ) AS seen ON limited.key = seen.ip_key
    GROUP BY place_key
) AS e ON if({by:String} = 'ip', sipHash64(concat('ip:', p.place)), sipHash64(p.place)) = e.place_key
WHERE ip_episodes > 0 OR denied_users > 0
ORDER BY denied_within_limit DESC, place;

-- FDR per dimension from the probe, as before, from one look at the challenges: `draws` are (dimension, key, limit and
-- beginning as in `firsts`, share, passed) of those that the probe drew. Only for their subjects episodes are looked at.
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
               sum(weight) * sum(weight) / sum(weight * weight) AS probe_n, least(1., sum(good) / sum(weight)) AS pass_rate,
               max(s.trusted) AS trusted, max(s.trusted_pass_rate) AS trusted_pass_rate,
               max(s.abusers) AS abusers, max(s.abuser_pass_rate) AS abuser_pass_rate
        FROM
        (
            SELECT r.draw.1 AS dimension, count() AS episodes, countIf(r.draw.5) AS passes, sum(1 / r.draw.4) AS weight,
                   sumIf(1 / r.draw.4, r.draw.5) AS good, max(r.trusted) AS trusted, max(r.trusted_pass_rate) AS trusted_pass_rate,
                   max(r.abusers) AS abusers, max(r.abuser_pass_rate) AS abuser_pass_rate
            FROM
            (
                SELECT countIf(is_trusted) AS trusted, if(trusted = 0, 0, avgIf(rate, is_trusted)) AS trusted_pass_rate,
                       countIf(is_abuser) AS abusers, if(abusers = 0, 0, avgIf(rate, is_abuser)) AS abuser_pass_rate,
                       arrayJoin(groupArrayArray(draws)) AS draw, draw.2 AS key, draw.3 AS started
                FROM
                (
                    SELECT sipHash64(c.who) AS who_key,
                           who_key IN (SELECT key FROM key_marks(from = {from:DateTime64(3, 'UTC')}, as_of = {as_of:DateTime64(3, 'UTC')})
                               WHERE abuse) AS is_abuser,
                           NOT is_abuser AND max(c.established) AND max(startsWith(c.who, 'user:')) AS is_trusted, avg(c.passed) AS rate,
                           groupArrayIf((c.dimension, sipHash64(if(c.subject = '', concat(c.dimension, ':'), c.subject)),
                               bitOr(bitShiftLeft(toUInt128(sipHash64('limit', c.limit_name)), 64), toUInt128(toUnixTimestamp64Milli(c.ts))),
                               c.share, c.passed), c.first AND c.share > 0 AND c.share <= 0.05) AS draws
                    FROM settled_challenges(from = {from:DateTime64(3, 'UTC')}, to = {to:DateTime64(3, 'UTC')},
                        as_of = {as_of:DateTime64(3, 'UTC')}, matures_s = {matures_s:Int64}) AS c
                    GROUP BY who_key
                )
            ) AS r
            INNER JOIN
            (
                SELECT key, arrayJoin(arrayFilter((x, b) -> b, firsts, arrayMap((x, y, i) -> i = 1
                           OR x > bitShiftRight(y, 64) + bitAnd(y, 18446744073709551615),
                           firsts, arrayPopBack(arrayPushFront(lasts, toUInt256(0))), arrayEnumerate(firsts)))) AS started
                FROM
                (
                    SELECT key, groupArray(piece) AS pieces,
                           arraySort(arrayMap(x -> toUInt128(bitShiftRight(x, 128)), pieces)) AS firsts,
                           arraySort(arrayMap(x -> bitOr(bitShiftLeft(bitShiftRight(x, 192), 128), toUInt256(toUInt128(x))), pieces)) AS lasts
                    FROM limited_pieces(from = {from:DateTime64(3, 'UTC')}, to = {to:DateTime64(3, 'UTC')})
                    WHERE key IN
                    (
                        SELECT sipHash64(if(subject = '', concat(dimension, ':'), subject))
                        FROM challenges(from = {from:DateTime64(3, 'UTC')}, to = {to:DateTime64(3, 'UTC')})
                        WHERE share > 0 AND share <= 0.05 AND first
                    )
                    GROUP BY key
                )
            ) AS e ON e.key = r.key AND e.started = r.started
            GROUP BY dimension, r.key
        ) AS s
        GROUP BY dimension
    )
)
ORDER BY dimension;
