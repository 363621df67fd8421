-- KEYS: the lock, its last fence. ARGV: claim, the lowest and the highest fence that it may have. The
-- last fence outlives the lock: the claim and each renewal have seen to that.
local token = redis.call('GET', KEYS[1])
local mine = ARGV[1] .. '.'
if not token or string.sub(token, 1, #mine) ~= mine then return 0 end
local held = string.match(token, '^%x+%.(%d+)%.')
if tonumber(held) < tonumber(ARGV[2]) or tonumber(held) > tonumber(ARGV[3]) then return 0 end
redis.call('DEL', KEYS[1])
return 1
