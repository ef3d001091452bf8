-- Takes subjects of which nothing is stored out of the pending index.
-- KEYS[1]  pending index      KEYS[2..]  state keys      Reply: how many were taken out.

local settled = 0
for i = 2, #KEYS do
  if redis.call('EXISTS', KEYS[i]) == 0 then
    settled = settled + redis.call('ZREM', KEYS[1], string.match(KEYS[i], '{([^}]*)}'))
  end
end
return settled
