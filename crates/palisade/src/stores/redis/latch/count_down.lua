-- Counts a latch down by one. KEYS: the latch, the note of this step. ARGV: the channel, `c` in a
-- cluster. Replies how many are left.
local noted = redis.call('GET', KEYS[2])
if noted then return tonumber(noted) end
if redis.call('EXISTS', KEYS[1]) == 0 then return 0 end
local left = redis.call('DECR', KEYS[1])
redis.call('SET', KEYS[2], left, 'PX', 60000)
if left <= 0 then
  redis.call('DEL', KEYS[1])
  redis.pcall('PUBLISH', ARGV[1], '0')
  if ARGV[2] == 'c' then redis.pcall('SPUBLISH', ARGV[1], '0') end
end
return left
