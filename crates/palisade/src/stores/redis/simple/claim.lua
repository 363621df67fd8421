-- KEYS: the lock, its last fence. ARGV: claim, lease in ms, owner and reason.
local KEEP_FENCE = 600000 -- ms
local token = redis.call('GET', KEYS[1])
if token then
  if string.sub(token, 1, #ARGV[1] + 1) == ARGV[1] .. '.' then
    -- The reply to the first attempt was lost: the claim finds its own grant, and renews it.
    if redis.call('PTTL', KEYS[1]) < tonumber(ARGV[2]) then redis.call('PEXPIRE', KEYS[1], ARGV[2]) end
    return string.match(token, '^%x+%.(%d+)%.')
  end
  return {token, redis.call('PTTL', KEYS[1])}
end
local time = redis.call('TIME')
local fence = time[1] * 1000000 + time[2]
local last = tonumber(string.match(redis.call('GET', KEYS[2]) or '', '^%d+') or 0)
if last >= fence then fence = last + 1 end
fence = string.format('%.0f', fence)
redis.call('SET', KEYS[1], ARGV[1] .. '.' .. fence .. '.' .. ARGV[3], 'PX', ARGV[2])
redis.call('SET', KEYS[2], fence, 'PX', ARGV[2] + KEEP_FENCE)
return fence
