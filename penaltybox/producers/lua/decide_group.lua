-- One slot group's part of a decision in a cluster: what all of its keys say, and its limits taken if they fit.
-- The quotas in force come with the call, because trust and plan may lie in another slot; they are read here where they are.
-- KEYS: block, challenge, record, [trust], [plan], [pass], counters
-- ARGV: question, cost, request id, life of the record in ms, refundable (1 or 0), [now in ms, for tests]
-- question: {reads, ignore the challenge (1 or 0), limits}
-- Reply: {outcome, now, then block, challenge, trust, plan, pass as they are there ('' for none), then as decide.lua}
-- outcome: 1 taken, 2 taken by an earlier request of the same key, 0 nothing taken
local question = cmsgpack.unpack(ARGV[1])
local cost, id, life, refundable = tonumber(ARGV[2]), ARGV[3], tonumber(ARGV[4]), tonumber(ARGV[5])
local now, reads, limits = now_of(ARGV[6]), question[1], question[3]
local found = redis.call('MGET', unpack(KEYS, 1, reads))
local reply = {0, now, found[1] or '', found[2] or ''}
for i = 4, reads do reply[i + 1] = found[i] or '' end
if found[1] or (found[2] and question[2] == 0) then return reply end

local record, taken = recorded(found[3]), {}
if record and #record[5] > 0 then reply[1], cost = 2, 0 end
local skip = #reply
if check_all(limits, reads, nil, 10000, cost, now, reply) and cost > 0 and #limits > 0 then
  local longest = take_all(limits, reads, cost, now, id, reply, skip, taken)
  if #taken > 0 then
    reply[1] = 1
    if life > 0 then
      keep_record(KEYS[3], refundable == 1 and min(longest, life) or life, id, now, cost, record and 0 or refundable, taken)
    end
  end
end
return reply
