-- KEYS: the lock, its last fence. ARGV: claim, lease in ms, fence or nothing, the fence of its first
-- round. Replies the fence of the grant; 0 when the server has no record of it, 1 when another
-- holder has it, 2 when it was revoked, 3 when a grant as late as this one has ended.
local KEEP_FENCE = 600000 -- ms
local token = redis.call('GET', KEYS[1])
local kept = redis.call('GET', KEYS[2]) or ''
local last, fence = tonumber(string.match(kept, '^%d+') or 0), tonumber(ARGV[3])
if not token then
  if string.find(kept, ' ' .. ARGV[1], 1, true) then return 2 end
  return fence and fence <= last and 3 or 0
end
local mine = ARGV[1] .. '.'
if string.sub(token, 1, #mine) ~= mine then return 1 end
local held, rest = string.match(token, '^%x+%.(%d+)(%..*)$')
if fence and held ~= ARGV[3] then
  if tonumber(held) < tonumber(ARGV[4]) or tonumber(held) > fence then return 1 end
  -- The last round has not come here.
  if last >= fence then return 3 end
  redis.call('SET', KEYS[1], mine .. ARGV[3] .. rest, 'KEEPTTL')
  held = ARGV[3]
elseif tonumber(held) < last then
  -- A later grant was here since.
  return 3
end
-- Extends, never shortens. The last fence must outlive the lock, however long that is held.
if redis.call('PTTL', KEYS[1]) < tonumber(ARGV[2]) then redis.call('PEXPIRE', KEYS[1], ARGV[2]) end
redis.call('SET', KEYS[2], held, 'PX', ARGV[2] + KEEP_FENCE)
return held
