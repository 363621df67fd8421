-- The value and the highest fence of a key that write.lua writes.
--
-- Replies  none | ok FENCE [VALUE] | foreign WHAT | corrupt FENCE
local kind = redis.call('TYPE', KEYS[1]).ok
if kind == 'none' then return {'none'} end
if kind ~= 'hash' then return {'foreign', kind} end
local mark, highest, value, ends = unpack(redis.call('HMGET', KEYS[1], 'palisade', 'fence', 'value', 'ends'))
if mark ~= 'fenced:1' then return {'foreign', mark or 'hash'} end
if not highest then return {'corrupt', ''} end
if value and ends then
  local time = redis.call('TIME')
  if tonumber(ends) <= time[1] * 1000 + math.floor(time[2] / 1000) then value = false end
end
if value then return {'ok', highest, value} end
return {'ok', highest}
