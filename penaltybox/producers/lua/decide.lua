-- A decision on one server: blocks, challenges, trust, plan, then all limits; takes only if all of them fit.
-- KEYS: counters, [record of the idempotency key]
-- ARGV: question, cost, request id, longest life of a record in ms (0: there is none), now in ms for tests or '',
--       then the keys that are only read: blocks, challenges, [trust], [plan], passes. As KEYS they would ask for the
--       right to write them, which nobody who merely limits should have.
-- question: {subjects, address (its place, 0: none), trust key, plan key, passes, newcomers percent, limits, names}
-- Replies: {1, now, established, block…} {2, now, established, challenge…}
--          {0, now, established, then quota, wait, remaining, reset of each limit}
local question = cmsgpack.unpack(ARGV[1])
local cost, id, record_life = tonumber(ARGV[2]), ARGV[3], tonumber(ARGV[4])
local now = now_of(ARGV[5])
local subjects, trust_at, plan_at = question[1], question[3], question[4]
local reads, before = max(2 * subjects, trust_at, plan_at), 5
local found = reads > 0 and redis.call('MGET', unpack(ARGV, before + 1, before + reads)) or {}
local share, established = trusted(trust_at > 0 and found[trust_at], question[6])

local function listed(kind, from)
  local reply = {kind, now, established}
  for i = 1, subjects do reply[i + 3] = found[from + i] or '' end
  return reply
end

for i = 1, subjects do
  if found[i] then return listed(1, 0) end
end
for i = subjects + 1, 2 * subjects do
  if found[i] then
    -- Whoever passed a challenge is not asked again because of the address; everybody else's challenge stands.
    if i - subjects ~= question[2] or question[5] == 0
      or redis.call('EXISTS', unpack(ARGV, before + reads + 1, before + reads + question[5])) == 0 then
      return listed(2, subjects)
    end
  end
end

local reply = {0, now, established}
local limits = question[7]
local customer = plan_at > 0 and found[plan_at] and decoded(found[plan_at]) or nil
local record_key, record, taken
if record_life > 0 then
  record_key = KEYS[#KEYS]
  record, taken = recorded(redis.call('GET', record_key)), {}
end
if customer or share ~= 10000 then put_in_force(limits, customer, question[8], share) end
if check_all(limits, 0, cost, now, reply) and cost > 0 then
  local longest = take_all(limits, 0, cost, now, id, reply, 3, taken)
  if taken and #taken > 0 then
    keep_record(record_key, min(longest, record_life), id, now, cost, record and record[4] or 1, taken)
  end
end
return reply
