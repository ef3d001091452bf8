-- What the main scripts share: which quota is in force, and check all limits before taking from any.
-- A limit is {algorithm, limit, window, burst or slots, dry run (1 or 0), name, {plan = limit}, burst follows limit (1 or 0)}.

local function decoded(text)
  local fine, value = pcall(cjson.decode, text)
  if fine and type(value) == 'table' then return value end
  return {}
end

local function now_of(given)
  if given and given ~= '' then return tonumber(given) end  -- tests only: everybody else counts in Redis' time
  local time = redis.call('TIME')
  return time[1] * 1000 + floor(time[2] / 1000)
end

-- Share of the normal quota in 1/10,000, and whether the subject is established (-1: nobody knows).
local function trusted(text, newcomers)
  local percent, established = 100, -1
  if text then
    local trust = decoded(text)
    if type(trust.multiplier) == 'number' and trust.multiplier > 0 then
      percent = min(floor(trust.multiplier * 100 + 0.5), 100000)
    end
    established = trust.established == true and 1 or 0
  end
  return percent * (established == 1 and 100 or newcomers), established
end

-- A customer's own limit before the plan's, the plan's before the policy's; then trust. At least 1.
local function in_force(limit, customer, share)
  local quota = limit[2]
  if customer then
    local own = type(customer.limits) == 'table' and customer.limits[limit[6]]
    local planned = type(customer.plan) == 'string' and limit[7][customer.plan]
    quota = type(own) == 'number' and own >= 1 and floor(own) or planned or quota
  end
  if share ~= 10000 then quota = floor(quota * share / 10000) end
  if quota == limit[2] then return quota, limit[4] end
  quota = max(1, min(quota, floor(9007199254740992 / limit[3])))
  if limit[8] == 1 then return quota, max(1, floor(limit[4] * quota / limit[2])) end
  return quota, limit[4]
end

-- Appends quota, wait, remaining and reset of each limit to the reply; returns whether all that are in force fit.
local function check_all(limits, first, customer, share, cost, now, reply)
  local fits, at = true, #reply
  for i = 1, #limits do
    local limit = limits[i]
    local quota, burst = in_force(limit, customer, share)
    local wait, remaining, reset = algorithms[limit[1]].check(KEYS[first + i], quota, limit[3], burst, cost, now)
    limit[4] = burst
    reply[at + 1], reply[at + 2], reply[at + 3], reply[at + 4] = quota, wait, remaining, reset
    at = at + 4
    if wait ~= 0 and limit[5] == 0 then fits = false end
  end
  return fits
end

-- Takes from every limit that fits; with `taken`, notes there what a refund needs. Returns the longest window.
local function take_all(limits, first, cost, now, id, reply, skip, taken)
  local longest, at = 0, skip
  for i = 1, #limits do
    if reply[at + 2] == 0 then
      local limit, key, quota = limits[i], KEYS[first + i], reply[at + 1]
      reply[at + 3], reply[at + 4] = algorithms[limit[1]].take(key, quota, limit[3], limit[4], cost, now, id)
      longest = max(longest, limit[3])
      if taken then taken[#taken + 1] = {key, limit[1], quota, limit[3], limit[4]} end
    end
    at = at + 4
  end
  return longest
end

-- A record of what a request took: {request id, when, cost, refundable (1 or 0), what}; nothing in `what`: given back.
local function recorded(text)
  if not text then return nil end
  local fine, record = pcall(cmsgpack.unpack, text)
  if fine and type(record) == 'table' and type(record[5]) == 'table' then return record end
  return nil
end

local function keep_record(key, ttl, id, now, cost, refundable, taken)
  redis.call('SET', key, cmsgpack.pack({id, now, cost, refundable, taken}), 'PX', ttl)
end
