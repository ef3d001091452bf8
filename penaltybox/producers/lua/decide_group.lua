-- One slot group's part of a decision in a cluster: what all of its keys say, and its limits taken if they fit.
-- The quotas in force come with the call, because trust and plan may lie in another slot; they are read here where they are.
-- KEYS: record, counters
-- ARGV: limits, whether the challenge is ignored (1 or 0), cost, request id, life of the record in ms, refundable (1 or
--       0), now in ms for tests or '', then the keys that are only read: block, challenge, [trust], [plan], [pass]
-- Reply: {outcome, now, then block, challenge, trust, plan, pass as they are there ('' for none), then as decide.lua}
-- outcome: 1 taken, 0 nothing taken
local limits = limits_of(ARGV[1], #KEYS - 1, 1)
local cost, id, life, refundable = tonumber(ARGV[3]), ARGV[4], tonumber(ARGV[5]), tonumber(ARGV[6])
local now, limited = now_of(ARGV[7]), #limits > 0
local found = call('MGET', KEYS[1], unpack(ARGV, 8))
local reply = {0, now}
for i = 2, #ARGV - 6 do reply[i + 1] = found[i] or '' end
if found[2] or (found[3] and ARGV[2] == '0') then return reply end

local record, taken = recorded(found[1]), {}
local skip = #reply
if check_all(limits, 2, cost, now, id, reply, skip) and cost > 0 and limited then
  local longest = take_all(limits, 2, cost, now, id, reply, skip, taken)
  if #taken > 0 then
    reply[1] = 1
    if life > 0 then
      keep_record(KEYS[1], refundable == 1 and min(longest, life) or life, id, now, cost, record and min(record[4], refundable) or refundable, taken)
    end
  end
end
return reply
