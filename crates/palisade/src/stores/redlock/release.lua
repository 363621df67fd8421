-- KEYS: the lock, its last fence. ARGV: claim, the lowest and the highest fence that it may have.
local KEEP_FENCE = 600000 -- ms
local token = redis.call('GET', KEYS[1])
local mine = ARGV[1] .. '.'
if not token or string.sub(token, 1, #mine) ~= mine then return 0 end
local held = string.match(token, '^%x+%.(%d+)%.')
if tonumber(held) < tonumber(ARGV[2]) or tonumber(held) > tonumber(ARGV[3]) then return 0 end
redis.call('DEL', KEYS[1])
-- The last fence outlives the lock.
local last = tonumber(string.match(redis.call('GET', KEYS[2]) or '', '^%d+') or 0)
if tonumber(held) == last then redis.call('SET', KEYS[2], held, 'PX', KEEP_FENCE) end
return 1
