-- Sliding window log. A list with an entry per request, oldest first: packed numbers, and behind them the request's id.
-- What counts is a difference of two sums of costs, so nothing is ever added up, and the newest entry alone says what
-- counts until its oldest one leaves the window. A request's id that comes again is counted again.

do
  -- TAG, when it was taken, sum of all costs before it (modulo SUMS), its cost; and as they were then: the key's end,
  -- when the oldest entry was taken, the sum before that one.
  local TAG, FORM, HEAD = 0x4c50, '<I2I6I7I7I6I6I7', 41
  local SUMS = 2 ^ 52  -- what counts in one window must be less
  -- The key's end is moved only when it must, and then further than it must by this part of the window.
  local SPARE = 8

  -- The numbers of an entry but the tag; nil when it is none.
  local function opened(text)
    if text and #text >= HEAD then
      local tag, at, before, cost, ends, oldest, gone = unpacked(FORM, text)
      if tag == TAG then return at, before, cost, ends, oldest, gone end
    end
  end

  -- Place, time and sum before it of the first entry that was taken after `moment`, or with which `sum` is reached from
  -- `gone` on. Steps that double, then halves.
  local function first(key, moment, gone, sum)
    local low, place, step, high, found, base = 0, 0, 1, nil, nil, nil
    repeat
      local at, before, cost = opened(call('LINDEX', key, place))
      if not at or at > moment or (before + cost - gone) % SUMS >= sum then
        high, found, base = place, at, before
      else
        low = place + 1
      end
      place = high and floor((low + high) / 2) or low + step
      step = step + step
    until low == high
    return low, found, base
  end

  -- A log: what counts now, the key's time, that of its newest entry, the key's end, time of the oldest entry, the sum
  -- before it, the sum of all. When nothing counts, only the first three, and whether there is a key to replace.
  local function current(key, window, now)
    local newest = read('LINDEX', key, -1)
    local latest, before, cost, ends, oldest, gone = opened(newest)
    local time = latest and onward(latest, now, window)
    if not time or latest <= time - window then return {0, time or now, now, newest ~= false} end
    if oldest <= time - window then
      local place
      place, oldest, gone = first(key, time - window, 0, SUMS)
      call('LTRIM', key, place, -1)
    end
    local sum = before + cost
    return {(sum - gone) % SUMS, time, latest, ends, oldest, gone, sum % SUMS}
  end

  local function left(limit, window, log, now)
    return max(0, limit - log[1]), log[1] > 0 and log[3] + window - now or 0
  end

  algorithms.sliding_window = {
    check = function(key, limit, window, _, cost, now)
      local log = current(key, window, now)
      local wait, excess = 0, log[1] + cost - limit
      if cost > limit then
        wait = NEVER
      elseif cost > 0 and excess > 0 then
        local _, at = first(key, HUGE, log[6], excess)
        wait = at + window - now
      end
      local remaining, reset = left(limit, window, log, now)
      return wait, remaining, reset, log
    end,

    take = function(key, limit, window, _, cost, now, id, log)
      if cost > 0 then
        local time, ends, sum = log[2], log[4], log[7]
        if not sum then
          if ends then call('DEL', key) end
          ends, log[5], log[6], sum = 0, time, 0, 0
        end
        local needed = time + window + SLACK
        local late = ends < needed
        if late then ends = needed + floor(window / SPARE) end
        call('RPUSH', key, pack(FORM, TAG, time, sum, cost, ends, log[5], log[6]) .. id)
        if late then call('PEXPIRE', key, ends - now) end
        log[1], log[3] = log[1] + cost, time
      end
      return left(limit, window, log, now)
    end,

    -- Of several entries of this id and cost it is the oldest that was not taken before. The younger ones move up; the
    -- newest that is left tells what the newest told.
    give = function(key, _, _, _, cost, _, id, taken_at)
      local place, found, texts = -1, nil, {}
      local text = read('LINDEX', key, place)
      local at, _, spent = opened(text)
      while at and at >= taken_at do
        texts[place] = text
        if spent == cost and string.sub(text, HEAD + 1) == id then found = place end
        place = place - 1
        text = call('LINDEX', key, place)
        at, _, spent = opened(text)
      end
      if not found then return end
      local _, _, _, ends, oldest, gone = opened(texts[-1])
      local function put(to, entry, back)
        local taken, before, its = opened(entry)
        local numbers = pack(FORM, TAG, taken, (before - back) % SUMS, its, ends, oldest, gone)
        call('LSET', key, to, numbers .. string.sub(entry, HEAD + 1))
      end
      local second = texts[-2] or text
      if found == -1 and opened(second) then put(-2, second, 0) end
      for younger = found + 1, -1 do put(younger - 1, texts[younger], cost) end
      call('RPOP', key)
    end,
  }
end
