-- What the main scripts share: which quota is in force, and check all limits before taking from any.
-- Limits come in one flat table, SIZE fields each: algorithm, limit, window, burst or slots, dry run (1 or 0), burst
-- follows the limit (1 or 0). Their names, {path, {plan = limit}} each, come as JSON: only a
-- customer's plan needs them.
local SIZE = 6

local function decoded(text)
  local fine, value = pcall(cjson.decode, text)
  if fine and type(value) == 'table' then return value end
  return {}
end

local function now_of(given)
  if given and given ~= '' then return tonumber(given) end  -- tests only: everybody else counts in Redis' time
  local time = call('TIME')
  return time[1] * 1000 + floor(time[2] / 1000)
end

-- The table of so many limits, and where they end in what questions.py has packed.
local function limits_of(packed, count, from)
  local limits = {unpacked('<' .. string.rep('sdddBB', count), packed, from)}
  local ends = limits[#limits]
  limits[#limits] = nil
  return limits, ends
end

-- Sets limit and burst to what is in force for this customer and share of trust. At least 1. A customer's own limit
-- counts before the plan's, the plan's before the policy's.
local function put_in_force(limits, customer, names, share)
  local own = customer and type(customer.limits) == 'table' and customer.limits or {}
  local plan = customer and type(customer.plan) == 'string' and customer.plan
  names = customer and cjson.decode(names)
  for at = 1, #limits, SIZE do
    local limit = limits[at + 1]
    local quota = limit
    if customer then
      local path, plans = unpack(names[(at - 1) / SIZE + 1])
      local given = own[path]
      quota = type(given) == 'number' and given >= 1 and floor(given) or plan and plans[plan] or limit
    end
    if share ~= 10000 then quota = floor(quota * share / 10000) end
    if quota ~= limit then
      quota = max(1, min(quota, floor(9007199254740992 / limits[at + 2])))
      limits[at + 1] = quota
      if limits[at + 5] == 1 then limits[at + 3] = max(1, floor(limits[at + 3] * quota / limit)) end
    end
  end
end

-- Writes quota, wait, remaining and reset of each limit into the reply, behind `to`; returns whether all that are in
-- force fit. What `take` wants to know stays in the limit's last field.
local function check_all(limits, key, cost, now, id, reply, to)
  local fits = true
  for at = 1, #limits, SIZE do
    local quota = limits[at + 1]
    local wait, remaining, reset, known =
      algorithms[limits[at]].check(KEYS[key], quota, limits[at + 2], limits[at + 3], cost, now, id)
    reply[to + 1], reply[to + 2], reply[to + 3], reply[to + 4] = quota, wait, remaining, reset
    limits[at + 5] = known or false  -- nil would be a hole, at which `#limits` may end: what follows would not be taken
    if wait ~= 0 and limits[at + 4] == 0 then fits = false end
    key, to = key + 1, to + 4
  end
  return fits
end

-- Takes from every limit that fits; with `taken`, notes there what a refund needs. Returns the longest window.
local function take_all(limits, key, cost, now, id, reply, to, taken)
  local longest = 0
  for at = 1, #limits, SIZE do
    if reply[to + 2] == 0 then
      local name, quota, window, burst = limits[at], limits[at + 1], limits[at + 2], limits[at + 3]
      reply[to + 3], reply[to + 4] =
        algorithms[name].take(KEYS[key], quota, window, burst, cost, now, id, limits[at + 5], reply[to + 3], reply[to + 4])
      longest = max(longest, window)
      if taken then taken[#taken + 1] = {KEYS[key], name, quota, window, burst} end
    end
    key, to = key + 1, to + 4
  end
  return longest
end

-- A record of what the last request of a key took: {request id, when, cost, refundable (1 or 0), what}; nothing in
-- `what`: given back. A key that comes again is charged again: else one key, which clients may choose, would make every
-- further request free. Of all its charges one can be given back.
local function recorded(text)
  if not text then return nil end
  local fine, record = pcall(cmsgpack.unpack, text)
  if fine and type(record) == 'table' and type(record[5]) == 'table' then return record end
  return nil
end

local function keep_record(key, ttl, id, now, cost, refundable, taken)
  call('SET', key, cmsgpack.pack({id, now, cost, refundable, taken}), 'PX', ttl)
end
