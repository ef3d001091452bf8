-- Planning was half of what a dashboard query took: an analysis inside an analysis was planned once for its columns and once to
-- be read, at each level, and each of its uses of `plan`, how a period is read, was planned anew. Now the outermost view asks
-- for what is the same everywhere and hands it down as a parameter, and nothing stands four views deep. docs/decisions/0035.

-- As before; a label is in use whether or not a copy of its outcome was merged away.
CREATE OR REPLACE VIEW maturity AS
SELECT max(if({matures_s:Int64} >= 0, {matures_s:Int64}, matures_s)) AS longest_s,
       {as_of:DateTime64(3, 'UTC')} - toIntervalSecond(longest_s) AS mature_before
FROM label_weights FINAL
WHERE weight > 0 AND ({matures_s:Int64} >= 0 OR label IN
    (SELECT DISTINCT label FROM outcomes WHERE ts >= {from:DateTime64(3, 'UTC')} AND ts < {as_of:DateTime64(3, 'UTC')}));

-- As before, by a plan of reading_slots.
CREATE OR REPLACE VIEW limited_pieces AS
WITH {plan:Tuple(Array(Tuple(DateTime('UTC'), UInt64)), Array(DateTime('UTC')))} AS plan
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

-- Labels in order, with weight, time to mature in ms, whether they need a limit, whether they mean abuse: `kind` of the views below.
CREATE OR REPLACE VIEW label_kinds AS
SELECT (groupArray(label), groupArray(weight), groupArray(horizon_ms), groupArray(after_limit), groupArray(abuse)) AS kind
FROM
(
    SELECT label, weight, if({matures_s:Int64} >= 0, {matures_s:Int64}, matures_s) * 1000 AS horizon_ms, after_limit, abuse
    FROM label_weights FINAL ORDER BY label
);

-- As before.
CREATE OR REPLACE VIEW key_marks AS
WITH {kind:Tuple(Array(String), Array(Float64), Array(Int64), Array(Bool), Array(Bool))} AS kind
SELECT arrayJoin(o.subject_keys) AS key, toUnixTimestamp64Milli(o.ts) * 65536 + indexOf(kind.1, toString(o.label)) AS mark,
       kind.5[indexOf(kind.1, toString(o.label))] AS abuse
FROM outcomes AS o FINAL
WHERE o.ts < {as_of:DateTime64(3, 'UTC')} AND has(kind.1, toString(o.label))
  AND (o.ts >= {from:DateTime64(3, 'UTC')} OR kind.5[indexOf(kind.1, toString(o.label))]);

-- As before. What seen_keys asked stands in it.
CREATE OR REPLACE VIEW judged_keys AS
WITH {plan:Tuple(Array(Tuple(DateTime('UTC'), UInt64)), Array(DateTime('UTC')))} AS plan,
     {kind:Tuple(Array(String), Array(Float64), Array(Int64), Array(Bool), Array(Bool))} AS kind,
     {mature_before_ms:Int64} AS mature_before_ms, fromUnixTimestamp64Milli(mature_before_ms, 'UTC') AS mature_before,
seen AS
(
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
    GROUP BY key
)
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
                    FROM seen
                    UNION ALL
                    SELECT key, code, if(code = 0, dimension, ''), false, piece, 0, false
                    FROM limited_pieces(from = {from:DateTime64(3, 'UTC')}, to = {to:DateTime64(3, 'UTC')},
                        plan = {plan:Tuple(Array(Tuple(DateTime('UTC'), UInt64)), Array(DateTime('UTC')))})
                    UNION ALL
                    SELECT key, 0, '', false, 0, mark, abuse
                    FROM key_marks(from = {from:DateTime64(3, 'UTC')}, as_of = {as_of:DateTime64(3, 'UTC')},
                        kind = {kind:Tuple(Array(String), Array(Float64), Array(Int64), Array(Bool), Array(Bool))})
                ) AS u
                GROUP BY u.key
            )
        )
    )
);

-- FDR and FPR per dimension, as before; `bounds` are the 95 % intervals of four shares.
CREATE OR REPLACE VIEW false_positives_as_of AS
SELECT dimension, episodes, immature, labelled, legitimate, fdr_status,
       if(fdr_known, good_share, NULL) AS fdr_lower_bound,
       if(fdr_known, bounds[1].1, NULL) AS fdr_low,
       if(fdr_known, bounds[1].2, NULL) AS fdr_high,
       fdr_labelled, fdr_legitimate, fdr_n, fdr_estimate_status,
       if(fdr_n < 30, NULL, known_share) AS fdr_estimate,
       if(fdr_n < 30, NULL, bounds[2].1) AS fdr_estimate_low,
       if(fdr_n < 30, NULL, bounds[2].2) AS fdr_estimate_high,
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
           multiIf(fdr_n < 30, 'insufficient', fdr_n < 100, 'report only', 'actionable') AS fdr_estimate_status,
           multiIf(fpr_n < 30, 'insufficient', nobody, 'unlabelled', fpr_n < 100, 'report only', 'actionable') AS fpr_status,
           fpr_n >= 30 AND NOT nobody AS fpr_known,
           arrayMap(s -> (
               greatest(0, (s.1 + z * z / (2 * s.2) - z * sqrt(s.1 * (1 - s.1) / s.2 + z * z / (4 * s.2 * s.2))) / (1 + z * z / s.2)),
               least(1, (s.1 + z * z / (2 * s.2) + z * sqrt(s.1 * (1 - s.1) / s.2 + z * z / (4 * s.2 * s.2))) / (1 + z * z / s.2))),
               [(good_share, toFloat64(greatest(episodes, 1))), (known_share, if(fdr_squares > 0, fdr_n, 1.)),
                (a, toFloat64(greatest(limited_labelled, 1))), (b, toFloat64(greatest(unlimited_labelled, 1)))]) AS bounds,
           limited_seen * bounds[3].1 AS a_low, limited_seen * bounds[3].2 AS a_high,
           unlimited_seen * bounds[4].1 AS b_low, unlimited_seen * bounds[4].2 AS b_high
    FROM
    (
        SELECT *,
               least(1, legitimate / greatest(episodes, 1)) AS good_share,
               if(fdr_squares > 0, fdr_labelled * fdr_labelled / fdr_squares, 0) AS fdr_n,
               least(1, fdr_legitimate / greatest(fdr_labelled, 1)) AS known_share,
               least(1, legitimate_limited / greatest(limited_labelled, 1)) AS a,
               least(1, legitimate_unlimited / greatest(unlimited_labelled, 1)) AS b,
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
                FROM judged_keys(from = {from:DateTime64(3, 'UTC')}, to = {to:DateTime64(3, 'UTC')}, as_of = {as_of:DateTime64(3, 'UTC')},
                    plan = (SELECT plan FROM reading_slots(from = {from:DateTime64(3, 'UTC')}, to = {to:DateTime64(3, 'UTC')})),
                    kind = (SELECT kind FROM label_kinds(matures_s = {matures_s:Int64})),
                    mature_before_ms = (SELECT toUnixTimestamp64Milli(mature_before) FROM maturity(
                        from = {from:DateTime64(3, 'UTC')}, as_of = {as_of:DateTime64(3, 'UTC')}, matures_s = {matures_s:Int64})))
                GROUP BY code, other
                HAVING episodes + immature > 0 OR legitimate_seen > 0
            )
        )
    )
)
ORDER BY dimension;

-- Shared addresses, by a plan of reading_pieces. What keyed_sightings, over_keys and ip_episodes_of asked stands in it.
CREATE OR REPLACE VIEW nat_by_plan AS
WITH {plan:Tuple(Array(Tuple(DateTime('UTC'), UInt64)), Array(DateTime('UTC')), Array(DateTime('UTC')))} AS plan,
     arrayConcat(plan.2, plan.3) AS bare, 1.959963984540054 AS z,
seen AS
(
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
)
),
over_keys AS
(
SELECT user_key AS key
FROM sightings_10m
WHERE slot >= {from:DateTime64(3, 'UTC')} AND slot < {to:DateTime64(3, 'UTC')} AND over
  AND (slot, build) IN (SELECT p.1, p.2 FROM (SELECT arrayJoin(plan.1) AS p))
UNION ALL
SELECT sipHash64(concat('user:', user))
FROM decisions
WHERE ts >= {from:DateTime64(3, 'UTC')} AND ts < {to:DateTime64(3, 'UTC')}
  AND toStartOfHour(ts) IN (SELECT toStartOfHour(arrayJoin(bare))) AND toStartOfTenMinutes(ts) IN (SELECT arrayJoin(bare))
  AND arrayExists(v -> has(splitByChar('+', splitByChar(':', toString(v))[1]), 'user'), violated)
UNION ALL
SELECT sipHash64(subject) FROM penalties FINAL
WHERE dimension = 'user' AND NOT shadow AND origin = 'rule' AND action IN ('challenge', 'deny')
  AND ts < {to:DateTime64(3, 'UTC')} AND (isNull(until) OR until >= {from:DateTime64(3, 'UTC')})
),
episodes_of AS
(
SELECT key, groupArray(l.piece) AS pieces,
       arraySort(arrayMap(x -> toUInt128(bitShiftRight(x, 128)), pieces)) AS firsts,
       arraySort(arrayMap(x -> bitOr(bitShiftLeft(bitShiftRight(x, 192), 128), toUInt256(toUInt128(x))), pieces)) AS lasts,
       arrayCount((x, y, i) -> i = 1 OR x > bitShiftRight(y, 64) + bitAnd(y, 18446744073709551615),
           firsts, arrayPopBack(arrayPushFront(lasts, toUInt256(0))), arrayEnumerate(firsts)) AS episodes
FROM limited_pieces(from = {from:DateTime64(3, 'UTC')}, to = {to:DateTime64(3, 'UTC')}, plan = (plan.1, bare)) AS l
WHERE l.code = 3
GROUP BY key
)
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
               user_key != 0 AND user_key IN (SELECT key FROM over_keys) AS is_over
        FROM seen AS s
        WHERE place != ''
        GROUP BY place, user_key
    ) AS u
    GROUP BY place
) AS p
LEFT JOIN
(
    SELECT if({by:String} = 'ip', key, sipHash64(placed.place)) AS place_key, toUInt64(sum(limited.episodes)) AS ip_episodes
    FROM episodes_of AS limited
    LEFT JOIN
    (
        SELECT DISTINCT sipHash64(concat('ip:', ip)) AS ip_key, if({by:String} = 'prefix', ip_prefix, asn) AS place
        FROM seen WHERE {by:String} != 'ip' AND ip != ''
    ) AS placed ON limited.key = placed.ip_key
    GROUP BY place_key
) AS e ON if({by:String} = 'ip', sipHash64(concat('ip:', p.place)), sipHash64(p.place)) = e.place_key
WHERE ip_episodes > 0 OR denied_users > 0
ORDER BY denied_within_limit DESC, place;

-- As before.
CREATE OR REPLACE VIEW nat AS
SELECT * FROM nat_by_plan(from = {from:DateTime64(3, 'UTC')}, to = {to:DateTime64(3, 'UTC')}, by = {by:String},
    plan = (SELECT plan FROM reading_pieces(from = {from:DateTime64(3, 'UTC')}, to = {to:DateTime64(3, 'UTC')})));

-- challenges, by a plan of reading_pieces_of.
CREATE OR REPLACE VIEW challenges_by_plan AS
WITH {plan:Tuple(Array(Tuple(DateTime('UTC'), UInt64)), Array(DateTime('UTC')), Array(DateTime('UTC')))} AS plan
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

-- As before.
CREATE OR REPLACE VIEW challenges AS
SELECT * FROM challenges_by_plan(from = {from:DateTime64(3, 'UTC')}, to = {to:DateTime64(3, 'UTC')},
    plan = (SELECT plan FROM reading_pieces_of(from = {from:DateTime64(3, 'UTC')}, to = {to:DateTime64(3, 'UTC')}, edition = 1)));

-- As before.
CREATE OR REPLACE VIEW settled_challenges AS
WITH (SELECT toInt64(if({matures_s:Int64} >= 0, {matures_s:Int64}, max(matures_s))) FROM label_weights FINAL
      WHERE label = 'challenge_passed') AS horizon_s
SELECT c.ts AS ts, c.dimension AS dimension, c.limit_name AS limit_name, c.subject AS subject, c.who AS who,
       c.established AS established, c.share AS share, c.first AS first,
       p.ref != '' AND p.passed_at <= c.ts + toIntervalSecond(horizon_s) AS passed
FROM
(
    SELECT ts, id, toString(dimension) AS dimension, toString(limit_name) AS limit_name, subject, who, established, share, first
    FROM challenges_by_plan(from = {from:DateTime64(3, 'UTC')}, to = {to:DateTime64(3, 'UTC')},
        plan = {plan:Tuple(Array(Tuple(DateTime('UTC'), UInt64)), Array(DateTime('UTC')), Array(DateTime('UTC')))})
    WHERE ts < {as_of:DateTime64(3, 'UTC')} - toIntervalSecond(horizon_s)
) AS c
LEFT JOIN
(
    SELECT ref, min(ts) AS passed_at FROM outcomes FINAL
    WHERE label = 'challenge_passed' AND ref != '' AND ts >= {from:DateTime64(3, 'UTC')} AND ts < {as_of:DateTime64(3, 'UTC')}
    GROUP BY ref
) AS p ON p.ref = c.id;

-- FDR from the probe, as before. `plan` is one of reading_slots, `challenged` one of reading_pieces_of.
CREATE OR REPLACE VIEW probe_by_plan AS
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
                           who_key IN (SELECT key FROM key_marks(from = {from:DateTime64(3, 'UTC')}, as_of = {as_of:DateTime64(3, 'UTC')},
                               kind = {kind:Tuple(Array(String), Array(Float64), Array(Int64), Array(Bool), Array(Bool))})
                               WHERE abuse) AS is_abuser,
                           NOT is_abuser AND max(c.established) AND max(startsWith(c.who, 'user:')) AS is_trusted, avg(c.passed) AS rate,
                           groupArrayIf((c.dimension, sipHash64(if(c.subject = '', concat(c.dimension, ':'), c.subject)),
                               bitOr(bitShiftLeft(toUInt128(sipHash64('limit', c.limit_name)), 64), toUInt128(toUnixTimestamp64Milli(c.ts))),
                               c.share, c.passed), c.first AND c.share > 0 AND c.share <= 0.05) AS draws
                    FROM settled_challenges(from = {from:DateTime64(3, 'UTC')}, to = {to:DateTime64(3, 'UTC')}, as_of = {as_of:DateTime64(3, 'UTC')},
                        matures_s = {matures_s:Int64}, plan = {challenged:Tuple(Array(Tuple(DateTime('UTC'), UInt64)), Array(DateTime('UTC')), Array(DateTime('UTC')))}) AS c
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
                    FROM limited_pieces(from = {from:DateTime64(3, 'UTC')}, to = {to:DateTime64(3, 'UTC')},
                        plan = {plan:Tuple(Array(Tuple(DateTime('UTC'), UInt64)), Array(DateTime('UTC')))})
                    WHERE key IN
                    (
                        SELECT sipHash64(if(subject = '', concat(dimension, ':'), subject))
                        FROM challenges_by_plan(from = {from:DateTime64(3, 'UTC')}, to = {to:DateTime64(3, 'UTC')},
                            plan = {challenged:Tuple(Array(Tuple(DateTime('UTC'), UInt64)), Array(DateTime('UTC')), Array(DateTime('UTC')))})
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

-- As before.
CREATE OR REPLACE VIEW probe_estimates AS
SELECT * FROM probe_by_plan(from = {from:DateTime64(3, 'UTC')}, to = {to:DateTime64(3, 'UTC')},
    as_of = {as_of:DateTime64(3, 'UTC')}, matures_s = {matures_s:Int64},
    plan = (SELECT plan FROM reading_slots(from = {from:DateTime64(3, 'UTC')}, to = {to:DateTime64(3, 'UTC')})),
    challenged = (SELECT plan FROM reading_pieces_of(from = {from:DateTime64(3, 'UTC')}, to = {to:DateTime64(3, 'UTC')}, edition = 1)),
    kind = (SELECT kind FROM label_kinds(matures_s = {matures_s:Int64})));

-- As before; labels are sought only for accounts of what is a farm.
CREATE OR REPLACE VIEW account_farms AS
SELECT f.dimension AS dimension, f.subject AS subject, any(f.accounts) AS accounts, any(f.established_accounts) AS established_accounts,
       any(f.established_share) AS established_share,
       countIf(l.abusive) AS abusive_accounts, countIf(NOT l.abusive AND l.legitimate > 0) AS legitimate_accounts,
       any(f.requests) AS requests, any(f.refused) AS refused, max(p.penalties) AS penalties,
       any(f.first_at) AS first_at, any(f.last_at) AS last_at
FROM
(
    SELECT dimension, concat(dimension, ':', place) AS subject, count() AS accounts, countIf(u.established) AS established_accounts,
           established_accounts / accounts AS established_share, groupArray(u.user) AS users, sum(u.requests) AS requests,
           sum(u.refused) AS refused, min(u.first_at) AS first_at, max(u.last_at) AS last_at
    FROM
    (
        SELECT kind, place, user, max(s.established) AS established, sum(s.requests) AS requests,
               sumIf(s.denials, s.enforced AND s.action IN ('challenge', 'deny', 'shadow')) AS refused,
               min(s.first_at) AS first_at, max(s.last_at) AS last_at
        FROM sightings(from = {from:DateTime64(3, 'UTC')}, to = {to:DateTime64(3, 'UTC')}) AS s
        ARRAY JOIN [s.device, s.ip] AS place, [1, 2] AS kind
        WHERE user != '' AND place != ''
        GROUP BY kind, place, user
    ) AS u
    GROUP BY ['device', 'ip'][kind] AS dimension, place
    HAVING accounts >= 4 AND established_share < 0.25
) AS f
ARRAY JOIN f.users AS user
LEFT JOIN
(
    SELECT subject, abusive, legitimate
    FROM subject_labels(from = {from:DateTime64(3, 'UTC')}, as_of = now64(3, 'UTC'), matures_s = -1)
    WHERE startsWith(subject, 'user:')
) AS l ON l.subject = concat('user:', user)
LEFT JOIN
(
    SELECT subject, count() AS penalties FROM penalties FINAL
    WHERE ts >= {from:DateTime64(3, 'UTC')} AND ts < {to:DateTime64(3, 'UTC')} AND NOT shadow AND action != 'lift'
    GROUP BY subject
) AS p ON p.subject = f.subject
GROUP BY dimension, subject
ORDER BY accounts DESC, subject;

DROP VIEW IF EXISTS seen_keys;

DROP VIEW IF EXISTS ip_episodes_of;

DROP VIEW IF EXISTS keyed_sightings;

DROP VIEW IF EXISTS over_keys;
