-- KEYS: the lock, its last fence.
local token = redis.call('GET', KEYS[1])
if not token then return false end
return {token, redis.call('PTTL', KEYS[1])}
