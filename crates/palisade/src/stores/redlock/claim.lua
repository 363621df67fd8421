-- One round of a claim. KEYS: the lock, its last fence. ARGV: claim, lease in ms, fence, owner and
-- reason. Replies the fence when this server has stored it; {floor, why} when the lock is the claim's,
-- but the fence must be above the floor; {token, ms left} when another holder has the lock.
local KEEP_FENCE = 600000 -- ms
local BEHIND = 1000000 -- microseconds
local mine, ttl, fence, found = ARGV[1] .. '.', ARGV[2], tonumber(ARGV[3]), false
local value = mine .. ARGV[3] .. '.' .. ARGV[4]
local free = redis.call('SET', KEYS[1], value, 'PX', ttl, 'NX')
local last = tonumber(string.match(redis.call('GET', KEYS[2]) or '', '^%d+') or 0)
if not free then
  local token = redis.call('GET', KEYS[1])
  if string.sub(token, 1, #mine) ~= mine then return {token, redis.call('PTTL', KEYS[1])} end
  -- A further round, or the reply to an earlier one was lost.
  local held = string.match(token, '^%x+%.(%d+)%.')
  if tonumber(held) > fence then return {held, 'last'} end -- a later round was faster
  if redis.call('PTTL', KEYS[1]) > tonumber(ttl) then ttl = redis.call('PTTL', KEYS[1]) end
  found = fence == last and held == ARGV[3]
  redis.call('SET', KEYS[1], value, 'PX', ttl)
end
if not found then
  if fence <= last then return {string.format('%.0f', last), 'last'} end
  -- Also where a fence is remembered: it may come from an old snapshot.
  local time = redis.call('TIME')
  local now = time[1] * 1000000 + time[2]
  if fence + BEHIND < now then return {string.format('%.0f', now), 'time'} end
end
redis.call('SET', KEYS[2], ARGV[3], 'PX', ttl + KEEP_FENCE)
return ARGV[3]
