-- Sliding window log. A list with an entry per request, oldest first: packed numbers, and behind them the request's id.
-- What counts is a difference of two sums of costs, so nothing is ever added up, and the newest entry alone says what
-- counts until its oldest one leaves the window. A request's id that comes again is counted again.

do
  local DEEPEST = 1000
  local first
  --> halving

  -- Of a log whose newest entry does not say it all: the key's time, what counts now, the time of its newest entry, the
  -- key's end, time of the oldest entry, the sum before it, the sum of all; and last, whether there is a key to replace.
  local function searched(key, window, now, newest)
    local latest, before, cost, ends, oldest, gone = opened(newest)
    local time = latest and onward(latest, now, window)
    if not time or latest <= time - window then
      time = time or now
      return time, 0, now, 0, time, 0, 0, newest ~= false
    end
    if oldest <= time - window then
      local place
      place, oldest, gone = first(key, time - window, 0, SUMS)
      call('LTRIM', key, place, -1)
    end
    local sum = before + cost
    return time, (sum - gone) % SUMS, latest, ends, oldest, gone, sum % SUMS
  end

  algorithms.sliding_window = {
    -- `known` is the new entry; or, when more is to be done than to add it, a table of the entry, in how long the key is
    -- to end, whether there is a key to replace, and the key's time.
    check = function(key, limit, window, _, cost, now, id)
      local newest = read('LINDEX', key, '-1')  -- a number would be printed first, at every call
      local tag, latest, sum, spent, ends, oldest, gone
      if newest and #newest >= HEAD then tag, latest, sum, spent, ends, oldest, gone = unpacked(FORM, newest) end
      local time, counted, stale = now, nil, nil
      if tag == TAG and latest <= now and oldest > now - window then
        sum = (sum + spent) % SUMS
        counted = (sum - gone) % SUMS
      else
        time, counted, latest, ends, oldest, gone, sum, stale = searched(key, window, now, newest)
      end
      local wait, known = 0, nil
      if cost > limit then
        wait = NEVER
      elseif cost > 0 then
        if counted + cost > limit then
          local _, at = first(key, HUGE, gone, counted + cost - limit)
          wait = at + window - now
        else
          local needed, life = time + window + SLACK, nil
          if ends < needed then
            ends = needed + floor(window / SPARE)
            life = ends - now
          end
          known = pack(FORM, TAG, time, sum, cost, ends, oldest, gone) .. id
          if life or stale or time ~= now then known = {known, life, stale, time} end
        end
      end
      return wait, max(0, limit - counted), counted > 0 and latest + window - now or 0, known
    end,

    take = function(key, _, window, _, cost, now, _, known, remaining, reset)
      if cost == 0 then return remaining, reset end
      if type(known) == 'string' then
        call('RPUSH', key, known)
        return remaining - cost, window
      end
      if known[3] then call('DEL', key) end
      call('RPUSH', key, known[1])
      if known[2] then call('PEXPIRE', key, known[2]) end
      return remaining - cost, known[4] + window - now
    end,

    -- Of several entries of this id and cost it is the oldest that was not taken before. The younger ones move up, so
    -- below DEEPEST of them nothing is given: a client that has many requests between one and its refund must not hold up
    -- Redis. The newest that is left tells what the newest told.
    give = GIVES and function(key, _, _, _, cost, _, id, taken_at)
      local place, found, texts = -1, nil, {}
      local text = read('LINDEX', key, place)
      local at, _, spent = opened(text)
      while at and at >= taken_at and place >= -DEEPEST do
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
    end or nil,
  }
end
