-- Sliding window counter. A hash: what was taken in each slot of the window under the slot's number, beside
--   shape `window/slots`, used (sum of the slots), oldest and latest (numbers of slots).
-- A slot counts in full until its last millisecond has left the window: never too little, too long by less than a slot.

do
  -- A whole number in digits; `..` would round it to 14 of them.
  local function digits(number)
    return format('%.0f', number)
  end

  local function fields(first, last)
    local names = {}
    for slot = first, last do
      names[#names + 1] = digits(slot)
    end
    return names
  end

  local function whole(text)
    return text and match(text, '^%d+$') and tonumber(text)
  end

  local function shape_of(window, slots)
    return digits(window) .. '/' .. digits(slots)
  end

  -- Four numbers as stored; nil when nothing is, or something else.
  local function stored(key, window, slots, slot)
    local reply = read('HMGET', key, 'shape', 'used', 'oldest', 'latest', digits(slot))
    if not reply then
      return nil
    end
    local used, oldest, latest = whole(reply[2]), whole(reply[3]), whole(reply[4])
    if reply[1] ~= shape_of(window, slots) or not (used and oldest and latest) then
      return nil
    elseif oldest > latest or latest - oldest > slots + 1 then
      return nil
    end
    return used, oldest, latest, whole(reply[5]) or 0
  end

  -- What counts now. `gone` are slots that left the window and are still stored.
  local function current(key, window, slots, now)
    local width = ceil(window / slots)
    local slot = floor(now / width)
    local used, oldest, latest, here = stored(key, window, slots, slot)
    local time = used and onward(latest * width, now, window)
    -- slots below this one have left the window
    local first = floor(((time or now) - window + 1) / width)
    if not time or latest < first then
      return {used = 0, slot = floor((time or now) / width), here = 0, latest = 0, width = width, stale = true}
    end
    if latest > slot then
      slot, here = latest, whole(call('HGET', key, digits(latest))) or 0
    end
    local gone = fields(oldest, first - 1)
    if #gone > 0 then
      for _, count in ipairs(call('HMGET', key, unpack(gone))) do
        used = used - (whole(count) or 0)
      end
    end
    return {used = max(0, used), slot = slot, here = here, oldest = max(oldest, first), latest = latest, width = width,
      gone = gone}
  end

  -- How long a slot counts from now on.
  local function rest(slot, width, window, now)
    return (slot + 1) * width - 1 + window - now
  end

  local function wait_for(key, counter, excess, window, now)
    local first = counter.oldest
    for i, count in ipairs(call('HMGET', key, unpack(fields(first, counter.latest)))) do
      excess = excess - (whole(count) or 0)
      if excess <= 0 then
        return rest(first + i - 1, counter.width, window, now)
      end
    end
    return rest(counter.latest, counter.width, window, now)
  end

  local function left(limit, window, counter, now)
    return max(0, limit - counter.used), counter.used > 0 and rest(counter.latest, counter.width, window, now) or 0
  end

  algorithms.sliding_window_counter = {
    check = function(key, limit, window, slots, cost, now)
      local counter = current(key, window, slots, now)
      local wait, excess = 0, counter.used + cost - limit
      if cost > limit then
        wait = NEVER
      elseif cost > 0 and excess > 0 then
        wait = wait_for(key, counter, excess, window, now)
      end
      local remaining, reset = left(limit, window, counter, now)
      return wait, remaining, reset, counter
    end,

    take = function(key, limit, window, slots, cost, now, _, counter)
      if cost > 0 then
        if counter.stale then
          call('DEL', key)
          call('HSET', key, 'shape', shape_of(window, slots))
          counter.stale, counter.gone, counter.oldest = false, {}, counter.slot
        elseif #counter.gone > 0 then
          call('HDEL', key, unpack(counter.gone))
          counter.gone = {}
        end
        counter.used, counter.here, counter.latest = counter.used + cost, counter.here + cost, counter.slot
        call('HSET', key, 'used', counter.used, 'oldest', counter.oldest, 'latest', counter.latest,
          digits(counter.slot), counter.here)
        call('PEXPIRE', key, rest(counter.slot, counter.width, window, now) + SLACK)
      end
      return left(limit, window, counter, now)
    end,

    give = GIVES and function(key, _, window, slots, cost, _, _, taken_at)
      local slot = floor(taken_at / ceil(window / slots))
      local used, oldest, latest, count = stored(key, window, slots, slot)
      if not used or slot < oldest or slot > latest then
        return
      end
      local back = min(count, cost, used)
      if back > 0 then
        call('HINCRBY', key, digits(slot), -back)
        call('HINCRBY', key, 'used', -back)
      end
    end or nil,
  }
end
