-- The usual decision, told at once: nobody is blocked or has a plan, quotas are the policy's, all limits are sliding
-- window logs and fit, and nobody wants a record. Whatever is otherwise, nothing has been taken yet, and the files below
-- decide. They would say the same here, but what they set up and hand on takes as long again as this.
-- Replies: {-1, established, then what remains of each limit}. Nobody has to wait, and a whole window resets.
local plain, place = record_life == 0 and cost > 0 and share == 10000, 1
while plain and place <= reads do
  plain = not found[place] or place == trust_at
  place = place + 1
end
if plain then
  local numbers, at, count = ARGV[1], numbers_at, #KEYS
  local entries, lives, stale, reply, first = {}, nil, nil, {-1, established}, nil
  for i = 1, count do
    local limit, window
    limit, window, at = unpacked('<dd', numbers, at)
    local newest = redis.pcall('LINDEX', KEYS[i], '-1')  -- a number would be printed first, at every call
    local sum, ends, oldest, gone = 0, 0, now, 0
    if newest then
      local tag, latest, before, spent
      if type(newest) == 'string' and #newest >= HEAD then
        tag, latest, before, spent, ends, oldest, gone = unpacked(FORM, newest)
      end
      if tag ~= TAG or latest > now then
        plain = false
        break
      end
      sum = (before + spent) % SUMS
      if latest <= now - window then  -- all have left
        sum, ends, oldest, gone = 0, 0, now, 0
        stale = stale or {}
        stale[i] = true
      elseif oldest <= now - window then
        if not first then
          --> halving
        end
        local kept
        kept, oldest, gone = first(KEYS[i], now - window, 0, SUMS)
        call('LTRIM', KEYS[i], kept, -1)
      end
    end
    local remaining = limit - (sum - gone) % SUMS - cost
    if remaining < 0 then
      plain = false
      break
    end
    local needed = now + window + SLACK
    if ends < needed then
      ends = needed + floor(window / SPARE)
      lives = lives or {}
      lives[i] = ends - now
    end
    entries[i] = pack(FORM, TAG, now, sum, cost, ends, oldest, gone) .. id
    reply[i + 2] = remaining
  end
  if plain then
    for i = 1, count do
      if stale and stale[i] then call('DEL', KEYS[i]) end
      call('RPUSH', KEYS[i], entries[i])
      if lives and lives[i] then call('PEXPIRE', KEYS[i], lives[i]) end
    end
    return reply
  end
end
