-- What is asked about a request, and what the keys that may block or trust say.
-- KEYS: counters, [record of the idempotency key]
-- ARGV: the question, then the keys that are only read: blocks, challenges, [trust], [plan], passes; request id; and if
--       it is not the usual: longest life of a record in ms (0: there is none), cost, now in ms for tests or ''. As KEYS,
--       what is only read would ask for the right to write it, which nobody who merely limits should have.
-- question: how many keys are read (without the passes), subjects, address (its place, 0: none), place of the trust key,
--           of the plan key, passes, newcomers percent; limit and window of each limit, which at_once.lua wants; the
--           limits and their names, see limits.lua
local READS = 1
local reads, subjects, address, trust_at, plan_at, passes, newcomers, numbers_at = unpacked('<HHHHHHd', ARGV[1])
local id_at = READS + reads + passes + 1
local id, record_life, cost, now = ARGV[id_at], 0, 1, nil
if #ARGV > id_at then
  record_life, cost, now = tonumber(ARGV[id_at + 1]), tonumber(ARGV[id_at + 2]), tonumber(ARGV[id_at + 3])
end
if not now then
  local time = call('TIME')
  now = time[1] * 1000 + floor(time[2] / 1000)
end
local found = reads > 0 and call('MGET', unpack(ARGV, READS + 1, READS + reads)) or {}

-- Share of the normal quota in 1/10,000; whether the subject is established: 1, 0, or -1, nobody knows.
local share, established = 100 * newcomers, -1
if trust_at > 0 and found[trust_at] then
  local fine, trust = pcall(cjson.decode, found[trust_at])
  if not fine or type(trust) ~= 'table' then trust = {} end
  local percent = 100
  if type(trust.multiplier) == 'number' and trust.multiplier > 0 then
    percent = min(floor(trust.multiplier * 100 + 0.5), 100000)
  end
  established = trust.established == true and 1 or 0
  share = percent * (established == 1 and 100 or newcomers)
end
