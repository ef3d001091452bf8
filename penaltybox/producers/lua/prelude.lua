-- What every algorithm needs. The files are joined in this order: names, for a decision asked and at_once, prelude,
-- draining, one per algorithm, limits, the script. A line `--> halving` stands for the file of that name.
--
-- An algorithm is a table of three functions; times in ms, `size` is the burst or the number of slots:
--   check(key, limit, window, size, cost, now, id)  -> wait (0: fits, NEVER: above the limit), remaining, reset, and what
--                                                      `take` wants to know
--   take(key, limit, window, size, cost, now, id, known, remaining, reset)  -> remaining, reset; only after `check` of
--                                                      this key said 0 and the last three
--   give(key, limit, window, size, cost, now, id, taken_at)  gives back what `take` took with this id, cost and time
-- `remaining` is the largest cost that fits now; `reset` is how long until all of the quota is there again.
--
-- The limit may differ from call to call (plans, trust): what was taken counts against the limit of whoever asks.
-- A key that holds something else (another type, another algorithm, another window) counts as empty and is replaced
-- by the next `take`. A key's time never runs backwards, but a step back by more than a window starts it afresh.
-- Every written key has an end: when it counts for nothing any more, and SLACK later, for clocks that step back.
--
-- All of this is set up at every call, and a function costs a tenth of a microsecond whether it is called or not. So only
-- the scripts that give back have `give`: their text starts with `local GIVES = true`.

-- The key's time now; nil when the clock was set back by more than a window.
local function onward(latest, now, window)
  if now >= latest then
    return now
  elseif latest - now <= window then
    return latest
  end
end

-- The reply of a reading command; nil when the key holds another type. Any other failure stops the script.
local function read(...)
  local reply = redis.pcall(...)
  if type(reply) == 'table' and reply.err then
    if string.find(reply.err, 'WRONGTYPE', 1, true) then
      return nil
    end
    error(reply.err)
  end
  return reply
end
