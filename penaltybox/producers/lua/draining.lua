-- What token bucket and leaky bucket share: a level that rises by the cost and drains by `limit` per window. For the
-- token bucket it is what is missing, for the leaky bucket what is in it. In cost x window, of which `limit` drain in
-- a millisecond: exact in whole numbers.
--
-- A string `tag:window:level:latest:since:empty_at`: the level at the time `latest`, since when it has not been empty,
-- and when it will be at the rate at which it was filled; then the key ends.

local function draining(tag)
  local pattern = '^' .. tag .. ':(%d+):(%d+):(%d+):(%d+):(%d+)$'
  local form = tag .. ':%.0f:%.0f:%.0f:%.0f:%.0f'

  -- The level now, the key's time, since when it has not been empty, when it will be.
  local function current(key, limit, window, now)
    local text = read('GET', key)
    if text then
      local stored_window, level, latest, since, empty_at = match(text, pattern)
      if tonumber(stored_window) == window then
        latest, empty_at = tonumber(latest), tonumber(empty_at)
        local time = onward(latest, now, window)
        if time and time < empty_at then
          level = tonumber(level) - (time - latest) * limit
          if level > 0 then
            return level, time, tonumber(since), min(empty_at, time + ceil(level / limit))
          end
        end
        now = time or now
      end
    end
    return 0, now, now, now
  end

  local function store(key, window, level, time, since, empty_at, now)
    call('SET', key, format(form, window, level, time, since, empty_at), 'PX', empty_at - now + SLACK)
  end

  local function left(window, burst, level, empty_at, now)
    return max(0, floor((burst * window - level) / window)), level > 0 and empty_at - now or 0
  end

  return {
    check = function(key, limit, window, burst, cost, now)
      local level, time, since, empty_at = current(key, limit, window, now)
      local wait, excess = 0, level - (burst - cost) * window
      if cost > burst then
        wait = NEVER
      elseif cost > 0 and excess > 0 then
        wait = min(empty_at, time + ceil(excess / limit)) - now
      end
      local remaining, reset = left(window, burst, level, empty_at, now)
      return wait, remaining, reset, {level, time, since, empty_at}
    end,

    take = function(key, limit, window, burst, cost, now, _, state)
      if cost > 0 then
        state[1] = state[1] + cost * window
        state[4] = state[2] + ceil(state[1] / limit)
        store(key, window, state[1], state[2], state[3], state[4], now)
      end
      return left(window, burst, state[1], state[4], now)
    end,

    -- A level that has been empty since the cost was taken owes nothing for it any more.
    give = GIVES and function(key, limit, window, _, cost, now, _, taken_at)
      local level, time, since, empty_at = current(key, limit, window, now)
      if level > 0 and taken_at >= since then
        level = level - cost * window
        if level > 0 then
          store(key, window, level, time, since, min(empty_at, time + ceil(level / limit)), now)
        else
          call('DEL', key)
        end
      end
    end or nil,
  }
end
