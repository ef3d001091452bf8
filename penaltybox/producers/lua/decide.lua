-- A decision on one server: blocks, challenges, trust, plan, then all limits; takes only if all of them fit. What is
-- asked is in asked.lua, and the usual answer in at_once.lua.
-- Replies: {1, now, established, block…} {2, now, established, challenge…}
--          {0, now, established, then quota, wait, remaining, reset of each limit}
local kind = 0
for i = 1, 2 * subjects do
  -- Whoever passed a challenge is not asked again because of the address; everybody else's challenge stands.
  if found[i] and (i <= subjects or i - subjects ~= address or passes == 0
    or call('EXISTS', unpack(ARGV, READS + reads + 1, READS + reads + passes)) == 0) then
    kind = i <= subjects and 1 or 2
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
local count = record_key and #KEYS - 1 or #KEYS
local limits, names_at = limits_of(ARGV[1], count, numbers_at + 16 * count)
if customer or share ~= 10000 then put_in_force(limits, customer, string.sub(ARGV[1], names_at), share) end
-- Four numbers for each limit, which has more fields than that: a table that has its size need not grow.
local reply = {0, now, established, unpack(limits, 1, 4 * #limits / SIZE)}
if check_all(limits, 1, cost, now, id, reply, 3) and cost > 0 then
  local longest = take_all(limits, 1, cost, now, id, reply, 3, taken)
  if taken and #taken > 0 then
    keep_record(record_key, min(longest, record_life), id, now, cost, record and record[4] or 1, taken)
  end
end
return reply
