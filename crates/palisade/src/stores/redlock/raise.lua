-- The second round. KEYS: the lock, its last fence. ARGV: claim, fence. Replies the fence when this
-- server has stored it, {floor, why} when it must be above the floor, 0 when the lock is not the claim's.
local KEEP_FENCE = 600000 -- ms
local token = redis.call('GET', KEYS[1])
local mine = ARGV[1] .. '.'
if not token or string.sub(token, 1, #mine) ~= mine then return 0 end
local last = tonumber(string.match(redis.call('GET', KEYS[2]) or '', '^%d+') or 0)
local held, rest = string.match(token, '^%x+%.(%d+)(%..*)$')
if tonumber(ARGV[2]) < last or (tonumber(ARGV[2]) == last and held ~= ARGV[2]) then return {string.format('%.0f', last), 'last'} end
redis.call('SET', KEYS[1], mine .. ARGV[2] .. rest, 'KEEPTTL')
redis.call('SET', KEYS[2], ARGV[2], 'PX', redis.call('PTTL', KEYS[1]) + KEEP_FENCE)
return ARGV[2]
