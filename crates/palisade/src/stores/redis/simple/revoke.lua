-- KEYS: the lock, its last fence. ARGV: the fence of the grant, or nothing for a peer's.
local KEEP_FENCE = 600000 -- ms
local token = redis.call('GET', KEYS[1])
if not token then return 0 end
local fence = ''
if string.sub(token, 33, 33) == '.' then fence = string.match(token, '^%x+%.(%d+)%.') or '' end
if fence ~= ARGV[1] then return token end
redis.call('DEL', KEYS[1])
-- With the claim beside it, so that its owner can be told why.
if fence ~= '' then redis.call('SET', KEYS[2], fence .. ' ' .. string.sub(token, 1, 32), 'PX', KEEP_FENCE) end
return 1
