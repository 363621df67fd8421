-- Sets a latch that is open. KEYS: the latch, the note of this step. ARGV: the channel, `c` in a
-- cluster, the count. Replies 1, or 0 when it is set already.
local noted = redis.call('GET', KEYS[2])
if noted then return tonumber(noted) end
local done = redis.call('SET', KEYS[1], ARGV[3], 'NX') and 1 or 0
redis.call('SET', KEYS[2], done, 'PX', 60000)
if done == 1 then
  redis.pcall('PUBLISH', ARGV[1], '1')
  if ARGV[2] == 'c' then redis.pcall('SPUBLISH', ARGV[1], '1') end
end
return done
