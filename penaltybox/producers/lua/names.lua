-- What all files call by these names.

local algorithms = {}
local NEVER, HUGE = -1, math.huge
local SLACK = 1000
local call = redis.call
local floor, ceil, max, min = math.floor, math.ceil, math.max, math.min
local match, format = string.match, string.format
local pack, unpacked = struct.pack, struct.unpack

-- An entry of a sliding window log: TAG, when it was taken, sum of all costs before it (modulo SUMS), its cost; and as
-- they were then: the key's end, when the oldest entry was taken, the sum before that one. HEAD bytes, then the request's id.
local TAG, FORM, HEAD = 0x4c50, '<I2I6I7I7I6I6I7', 41
local SUMS = 2 ^ 52  -- what counts in one window must be less
-- The key's end is moved only when it must, and then further than it must by this part of the window.
local SPARE = 8
