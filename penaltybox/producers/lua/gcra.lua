-- GCRA, the generic cell rate algorithm (ITU-T I.371): one moment, at which all that was taken will have been served.
--
-- A string `gcra:window:tat:part:limit:latest:since`: the theoretical arrival time is tat ms and part/limit of one, so
-- that it is exact; the key's newest time; since when there has been a backlog. It ends when there is none. Another
-- limit than the stored one keeps the moment: half of the quota used stays half of it.

do
  local PATTERN = '^gcra:(%d+):(%d+):(%d+):(%d+):(%d+):(%d+)$'
  local FORM = 'gcra:%.0f:%.0f:%.0f:%.0f:%.0f:%.0f'

  -- The backlog in ms x limit, the key's time, since when there has been one.
  local function current(key, limit, window, now)
    local text = read('GET', key)
    if text then
      local stored_window, tat, part, stored_limit, latest, since = match(text, PATTERN)
      local time = tonumber(stored_window) == window and onward(tonumber(latest), now, window)
      if time then
        tat, part = tonumber(tat), tonumber(part)
        if part > 0 and tonumber(stored_limit) ~= limit then
          tat, part = tat + 1, 0
        end
        local backlog = (tat - time) * limit + part
        if backlog > 0 then
          return backlog, time, tonumber(since)
        end
        now = time
      end
    end
    return 0, now, now
  end

  local function store(key, limit, window, backlog, time, since, now)
    local whole = floor(backlog / limit)
    local text = format(FORM, window, time + whole, backlog - whole * limit, limit, time, since)
    call('SET', key, text, 'PX', time + ceil(backlog / limit) - now + SLACK)
  end

  local function left(limit, window, burst, backlog, time, now)
    local reset = backlog > 0 and time + ceil(backlog / limit) - now or 0
    return max(0, floor((burst * window - backlog) / window)), reset
  end

  algorithms.gcra = {
    check = function(key, limit, window, burst, cost, now)
      local backlog, time, since = current(key, limit, window, now)
      local wait, excess = 0, backlog - (burst - cost) * window
      if cost > burst then
        wait = NEVER
      elseif cost > 0 and excess > 0 then
        wait = time + ceil(excess / limit) - now
      end
      local remaining, reset = left(limit, window, burst, backlog, time, now)
      return wait, remaining, reset, {backlog, time, since}
    end,

    take = function(key, limit, window, burst, cost, now, _, state)
      if cost > 0 then
        state[1] = state[1] + cost * window
        store(key, limit, window, state[1], state[2], state[3], now)
      end
      return left(limit, window, burst, state[1], state[2], now)
    end,

    give = GIVES and function(key, limit, window, _, cost, now, _, taken_at)
      local backlog, time, since = current(key, limit, window, now)
      if backlog > 0 and taken_at >= since then
        backlog = backlog - cost * window
        if backlog > 0 then
          store(key, limit, window, backlog, time, since, now)
        else
          call('DEL', key)
        end
      end
    end or nil,
  }
end
