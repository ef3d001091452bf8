-- Finding an entry of a log: `opened`, and `first`, which is declared where this stands.

-- The numbers of an entry but the tag; nil when it is none.
local function opened(text)
  if text and #text >= HEAD then
    local tag, at, before, cost, ends, oldest, gone = unpacked(FORM, text)
    if tag == TAG then return at, before, cost, ends, oldest, gone end
  end
end

-- Place, time and sum before it of the first entry that was taken after `moment`, or with which `sum` is reached from
-- `gone` on. Steps that double, then halves.
first = function(key, moment, gone, sum)
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
