-- Sliding window log. A sorted set: one entry per request, `cost:id` at the time it was taken. Another member, `#`, is
-- there only while an entry costs more than 1: its score is minus what the costs are above the number of entries, so
-- that nothing has to be added up. A request's id that comes again is counted again, under another name.

do
  local EXTRA = '#'

  local function cost_of(member)
    return tonumber(match(member, '^(%d+):')) or 1
  end

  local function set_extra(key, extra)
    if extra > 0 then
      call('ZADD', key, -extra, EXTRA)
    else
      call('ZREM', key, EXTRA)
    end
  end

  -- Drops the entries up to the horizon; returns what is left of `extra`.
  local function clean(key, extra, horizon)
    if extra > 0 then
      for _, member in ipairs(call('ZRANGEBYSCORE', key, '(0', horizon)) do
        extra = extra - cost_of(member) + 1
      end
    end
    call('ZREMRANGEBYSCORE', key, '-inf', horizon)
    if extra > 0 then
      set_extra(key, extra)
    end
    return max(0, extra)
  end

  -- What counts now: what left the window is gone. `time` is the key's, `latest` that of its newest entry.
  local function current(key, window, now)
    local newest = read('ZRANGE', key, -1, -1, 'WITHSCORES')
    if newest and #newest == 0 then
      return {used = 0, extra = 0, time = now, latest = now}
    end
    local latest = newest and tonumber(newest[2])
    local time = latest and latest > 0 and latest == floor(latest) and onward(latest, now, window)
    if not time or latest <= time - window then
      return {used = 0, extra = 0, time = time or now, latest = now, stale = true}
    end
    local oldest, extra = call('ZRANGE', key, 0, 1, 'WITHSCORES'), 0
    local oldest_at = tonumber(oldest[2])
    if oldest[1] == EXTRA then
      extra, oldest_at = -oldest_at, tonumber(oldest[4])
    end
    if oldest_at <= time - window then
      extra = clean(key, extra, time - window)
    end
    local entries = call('ZCARD', key) - (extra > 0 and 1 or 0)
    return {used = entries + extra, extra = extra, time = time, latest = latest}
  end

  -- When the oldest entries that together cost `excess` were taken.
  local function taken_at_of(key, excess, extra)
    if extra == 0 then
      return tonumber(call('ZRANGE', key, excess - 1, excess - 1, 'WITHSCORES')[2])
    end
    local rank, at = 1, 0
    while excess > 0 do
      local page = call('ZRANGE', key, rank, rank + 99, 'WITHSCORES')
      if #page == 0 then
        return at
      end
      for i = 1, #page, 2 do
        if excess > 0 then
          excess, at = excess - cost_of(page[i]), tonumber(page[i + 1])
        end
      end
      rank = rank + 100
    end
    return at
  end

  local function left(limit, window, log, now)
    return max(0, limit - log.used), log.used > 0 and log.latest + window - now or 0
  end

  -- The member that `take` wrote for this id: the plain one, or of those with a number behind it one of that moment.
  local function find(key, member, taken_at)
    if read('ZSCORE', key, member) then
      return member
    end
    local numbered = member .. '~'
    for _, other in ipairs(read('ZRANGEBYSCORE', key, taken_at, taken_at) or {}) do
      if string.sub(other, 1, #numbered) == numbered then
        return other
      end
    end
  end

  algorithms.sliding_window = {
    check = function(key, limit, window, _, cost, now)
      local log = current(key, window, now)
      memo[key] = log
      local wait, excess = 0, log.used + cost - limit
      if cost > limit then
        wait = NEVER
      elseif cost > 0 and excess > 0 then
        wait = taken_at_of(key, excess, log.extra) + window - now
      end
      return wait, left(limit, window, log, now)
    end,

    take = function(key, limit, window, _, cost, now, id)
      local log = memo[key]
      if cost > 0 then
        if log.stale then
          call('DEL', key)
          log.stale = false
        end
        local plain, number = digits(cost) .. ':' .. id, log.used
        local member = plain
        while call('ZADD', key, 'NX', log.time, member) == 0 do
          member, number = plain .. '~' .. digits(number), number + 1
        end
        log.used, log.latest = log.used + cost, log.time
        if cost > 1 then
          log.extra = log.extra + cost - 1
          set_extra(key, log.extra)
        end
        call('PEXPIRE', key, log.time + window - now + SLACK)
      end
      return left(limit, window, log, now)
    end,

    give = function(key, _, _, _, cost, _, id, taken_at)
      local member = find(key, digits(cost) .. ':' .. id, taken_at)
      if member then
        call('ZREM', key, member)
        if cost > 1 then
          set_extra(key, -(tonumber(call('ZSCORE', key, EXTRA)) or 0) - cost + 1)
        end
      end
    end,
  }
end
