-- Fixed window. A string `fixed:window:start:used`, which ends with its window.

do
  local PATTERN = '^fixed:(%d+):(%d+):(%d+)$'

  -- Start of the window that counts now, and what was taken in it.
  local function current(key, window, now)
    local start = now - now % window
    local text = read('GET', key)
    if text then
      local stored_window, stored_start, used = match(text, PATTERN)
      stored_start = tonumber(stored_start)
      if tonumber(stored_window) == window and (stored_start == start or stored_start == start + window) then
        return stored_start, tonumber(used)
      end
    end
    return start, 0
  end

  local function store(key, window, start, used, now)
    call('SET', key, format('fixed:%.0f:%.0f:%.0f', window, start, used), 'PX', start + window - now + SLACK)
  end

  local function left(limit, window, start, used, now)
    return max(0, limit - used), used > 0 and start + window - now or 0
  end

  algorithms.fixed_window = {
    check = function(key, limit, window, _, cost, now)
      local start, used = current(key, window, now)
      local wait = 0
      if cost > limit then
        wait = NEVER
      elseif cost > 0 and used + cost > limit then
        wait = start + window - now
      end
      local remaining, reset = left(limit, window, start, used, now)
      return wait, remaining, reset, {start, used}
    end,

    take = function(key, limit, window, _, cost, now, _, state)
      local start, used = state[1], state[2] + cost
      if cost > 0 then store(key, window, start, used, now) end
      return left(limit, window, start, used, now)
    end,

    give = GIVES and function(key, _, window, _, cost, now, _, taken_at)
      local start, used = current(key, window, now)
      if used > 0 and taken_at - taken_at % window == start then
        store(key, window, start, max(0, used - cost), now)
      end
    end or nil,
  }
end
