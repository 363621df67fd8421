-- KEYS: the lock, its last fence. ARGV: claim, fence or nothing, lease in ms.
-- Answers the token while it is this grant's; 0 when the lock is gone, 1 when another holder has it, 2 when it was revoked.
local KEEP_FENCE = 600000 -- ms
local token = redis.call('GET', KEYS[1])
if not token then
  if string.find(redis.call('GET', KEYS[2]) or '', ' ' .. ARGV[1], 1, true) then return 2 end
  return 0
end
local mine = ARGV[1] .. '.'
if ARGV[2] ~= '' then mine = mine .. ARGV[2] .. '.' end
if string.sub(token, 1, #mine) ~= mine then return 1 end
-- Extends, never shortens. The last fence must outlive the lock, however long that is held.
if redis.call('PTTL', KEYS[1]) < tonumber(ARGV[3]) then redis.call('PEXPIRE', KEYS[1], ARGV[3]) end
redis.call('SET', KEYS[2], string.match(token, '^%x+%.(%d+)%.'), 'PX', ARGV[3] + KEEP_FENCE)
return token
