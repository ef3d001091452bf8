-- Gives back what a request took, at most once: the record of what it took is spent in the same step.
-- KEYS: record, counters
-- ARGV: the record as it was read ('' for any), request id ('' for any), 1: a refund, 0: as if it had never asked, [now]
-- Replies: 1 given back, 0 nothing (left) to give back, -1 another record is there by now
local stored = redis.call('GET', KEYS[1])
local record = recorded(stored)
if not record then return 0 end
if ARGV[1] ~= '' and stored ~= ARGV[1] then return -1 end
if ARGV[2] ~= '' and record[1] ~= ARGV[2] then return 0 end
if #record[5] == 0 then return 0 end
if ARGV[3] == '1' and record[4] ~= 1 then return 0 end
local now = now_of(ARGV[4])
for _, one in ipairs(record[5]) do
  algorithms[one[2]].give(one[1], one[3], one[4], one[5], record[3], now, record[1], record[2])
end
if ARGV[3] == '1' or record[4] ~= 1 then
  redis.call('SET', KEYS[1], cmsgpack.pack({record[1], record[2], record[3], 0, {}}), 'KEEPTTL')
else
  redis.call('DEL', KEYS[1])
end
return 1
