-- Versioned writes of subjects: each state with its marks, if nobody else has written since it was read.
--
-- KEYS[1]  generation      KEYS[2]  pending index (sorted set)      KEYS[3..]  state keys, one per subject
-- ARGV[1]  the generation that this writer joined      ARGV[2]  channel for changed blocks and challenges
-- then per subject:
--   expected   18 bytes: 0xcf number(8) 0xcf nonce(8), as in bytes 2..19 of the blob that was read
--   blob       the new state; bytes 3..10 (its number) are filled in here
--   expire_at  ms since the epoch, 0 for never
--   code       2 * (number of marks + 1) + pending, or 0 + pending when the marks are unchanged
--   and for each mark: name, value ('' deletes), expire_at (0 for never)
--
-- Reply, one per subject: n > 0: written under number n; n <= 0: rewound, -n is stored; a string: lost, this is stored.

local call = redis.call
local sub, pack, unpack_number = string.sub, struct.pack, struct.unpack
local floor = math.floor
local NEVER = 1099511627776 -- 2^40: numbers up to this one mean that nothing was stored

if call('GET', KEYS[1]) ~= ARGV[1] then
  return redis.error_reply('GENERATION another generation is stored, or none')
end

local pending_index, channel = KEYS[2], ARGV[2]
local time = call('TIME')
local clock = time[1] * 1000 + floor(time[2] / 1000)
local clock_bytes = pack('>I8', clock)
local any_pending = call('ZCARD', pending_index) > 0

local function subject_of(key)
  return string.match(key, '{([^}]*)}')
end

-- SETs a key and returns what it held. A key of another type, which denied nobody, must not keep a block from coming.
local function replace(key, ...)
  local old = redis.pcall('SET', key, ...)
  if type(old) == 'table' and old.err then
    if string.find(old.err, 'WRONGTYPE', 1, true) then
      call('DEL', key)
    end
    return call('SET', key, ...)
  end
  return old
end

-- Sets or deletes one mark; true when another program can see the difference.
local function set_mark(key, value, expire_at)
  if value == '' or (expire_at ~= '0' and tonumber(expire_at) <= clock) then
    return call('DEL', key) == 1
  elseif expire_at == '0' then
    return replace(key, value, 'GET') ~= value
  end
  return replace(key, value, 'PXAT', expire_at, 'GET') ~= value
end

local replies = {}
local at = 3
for i = 3, #KEYS do
  local key, expected, blob, expire_at = KEYS[i], ARGV[at], ARGV[at + 1], ARGV[at + 2]
  local code = tonumber(ARGV[at + 3])
  local marks = floor(code / 2) - 1
  at = at + 4
  local stored = call('GETRANGE', key, 2, 19)
  local number, reply
  if stored == expected then
    number = unpack_number('>I8', expected, 2) + 1
  elseif stored ~= '' and #stored < 18 then
    reply = call('GET', key)
  else
    local expected_number = unpack_number('>I8', expected, 2)
    local stored_number = stored == '' and 0 or unpack_number('>I8', stored, 2)
    if stored_number < expected_number then
      if marks < 0 and expected_number > NEVER then
        reply = -stored_number
      else
        number = expected_number + 1
      end
    elseif stored == '' then
      number = 1
    elseif sub(stored, 11, 18) == sub(blob, 13, 20) then
      reply = stored_number -- my own write, of which I never heard
    else
      reply = call('GET', key)
    end
  end

  if number then
    local number_bytes = clock_bytes
    if number > clock then
      number_bytes = pack('>I8', number)
    else
      number = clock
    end
    blob = sub(blob, 1, 3) .. number_bytes .. sub(blob, 12)
    if expire_at == '0' then
      call('SET', key, blob)
    elseif tonumber(expire_at) > number then
      call('SET', key, blob, 'PXAT', expire_at)
    else
      -- It lives until the clock has passed its number, or the next newcomer could get the same one or a lower.
      call('SET', key, blob, 'PXAT', number + 1)
    end
    if code % 2 == 1 then
      call('ZADD', pending_index, clock, subject_of(key))
      any_pending = true
    elseif any_pending then
      call('ZREM', pending_index, subject_of(key))
    end
    if marks > 0 then
      local stem, changed = sub(key, 1, -6), false
      for m = at, at + 3 * marks - 1, 3 do
        local name = ARGV[m]
        if set_mark(stem .. name, ARGV[m + 1], ARGV[m + 2]) and (name == 'block' or name == 'challenge') then
          changed = true
        end
      end
      if changed then
        call('PUBLISH', channel, subject_of(key))
      end
    end
    reply = number
  end
  if marks > 0 then
    at = at + 3 * marks
  end
  replies[i - 2] = reply
end
return replies
