-- Calls one algorithm by itself, on the time that it is given.
-- KEYS[1]  key      ARGV  operation, algorithm, limit, window, size, cost, now, id, taken_at
-- Replies: ask: wait, remaining, reset · decide: the same, and after a take what remaining and reset are then.

local algorithm = algorithms[ARGV[2]]
local limit, window, size, cost, now = unpack({
  tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6]), tonumber(ARGV[7])
})
if ARGV[1] == 'give' then
  algorithm.give(KEYS[1], limit, window, size, cost, now, ARGV[8], tonumber(ARGV[9]))
  return {}
end
local wait, remaining, reset, known = algorithm.check(KEYS[1], limit, window, size, cost, now, ARGV[8])
if ARGV[1] == 'decide' and wait == 0 then
  local remaining_then, reset_then =
    algorithm.take(KEYS[1], limit, window, size, cost, now, ARGV[8], known, remaining, reset)
  return {wait, remaining, reset, remaining_then, reset_then}
end
return {wait, remaining, reset}
