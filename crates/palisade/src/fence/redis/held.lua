-- Before write.lua: nothing is done unless the claim holds the lock at this moment, by this fence.
--
-- KEYS[2] the lock's key    ARGV[6] the claim
do
  -- Not `call`: a key of another type is no lock.
  local state = redis.pcall('HGET', KEYS[2], 's')
  local time = redis.call('TIME')
  if type(state) ~= 'string' or not holds(state, ARGV[6], ARGV[2], time[1] * 1000000 + time[2]) then return {'lost'} end
end
