-- KEYS: the lock, its last fence. ARGV: claim, fence or nothing.
local KEEP_FENCE = 600000 -- ms
local token = redis.call('GET', KEYS[1])
if not token then return 0 end
local mine = ARGV[1] .. '.'
if ARGV[2] ~= '' then mine = mine .. ARGV[2] .. '.' end
if string.sub(token, 1, #mine) ~= mine then return 0 end
redis.call('DEL', KEYS[1])
-- The last fence outlives the lock.
redis.call('SET', KEYS[2], string.match(token, '^%x+%.(%d+)%.'), 'PX', KEEP_FENCE)
return 1
