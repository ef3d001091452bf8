-- A decision on one server: blocks, challenges, trust, plan, then all limits; takes only if all of them fit.
-- KEYS: counters, [record of the idempotency key]
-- ARGV: question and how it is packed, names of the limits, cost, request id, longest life of a record in ms (0: there
--       is none), now in ms for tests or '', then the keys that are only read: blocks, challenges, [trust], [plan],
--       passes. As KEYS they would ask for the right to write them, which nobody who merely limits should have.
-- question: subjects, address (its place, 0: none), place of the trust key, of the plan key, passes, newcomers percent,
--           limits
-- Replies: {1, now, established, block…} {2, now, established, challenge…}
--          {0, now, established, then quota, wait, remaining, reset of each limit}
-- established: -1, nobody knows
local HEAD, READS = 6, 7
local question = {unpacked(ARGV[2], ARGV[1])}
question[#question] = nil  -- where unpacking ended
local cost, id, record_life, now = tonumber(ARGV[4]), ARGV[5], tonumber(ARGV[6]), now_of(ARGV[7])
local subjects, trust_at, plan_at = question[1], question[3], question[4]
local reads = max(2 * subjects, trust_at, plan_at)
local found = reads > 0 and call('MGET', unpack(ARGV, READS + 1, READS + reads)) or {}
local share, established = 100 * question[6], -1
if trust_at > 0 and found[trust_at] then share, established = trusted(found[trust_at], question[6]) end

local kind = 0
for place = 1, 2 * subjects do
  -- Whoever passed a challenge is not asked again because of the address; everybody else's challenge stands.
  if found[place] and (place <= subjects or place - subjects ~= question[2] or question[5] == 0
    or call('EXISTS', unpack(ARGV, READS + reads + 1, READS + reads + question[5])) == 0) then
    kind = place <= subjects and 1 or 2
    break
  end
end
if kind > 0 then
  local reply, from = {kind, now, established}, (kind - 1) * subjects
  for i = 1, subjects do reply[i + 3] = found[from + i] or '' end
  return reply
end

local customer = plan_at > 0 and found[plan_at] and decoded(found[plan_at]) or nil
local record_key, record, taken
if record_life > 0 then
  record_key = KEYS[#KEYS]
  record, taken = recorded(call('GET', record_key)), {}
end
if customer or share ~= 10000 then put_in_force(question, HEAD, customer, ARGV[3], share) end
-- Four numbers for each limit, which has more fields than that: a table that has its size need not grow.
local reply = {0, now, established, unpack(question, HEAD + 1, HEAD + 4 * (#question - HEAD) / SIZE)}
if check_all(question, HEAD, 1, cost, now, id, reply, 3) and cost > 0 then
  local longest = take_all(question, HEAD, 1, cost, now, id, reply, 3, taken)
  if taken and #taken > 0 then
    keep_record(record_key, min(longest, record_life), id, now, cost, record and record[4] or 1, taken)
  end
end
return reply
