-- KEYS: the lock, its last fence. ARGV: claim, fence or nothing, lease in ms.
-- Answers the token while it is this grant's; 0 when the lock is gone, 1 when it is somebody else's, 2 when it was revoked.
local token = redis.call('GET', KEYS[1])
if not token then
  if string.find(redis.call('GET', KEYS[2]) or '', ' ' .. ARGV[1], 1, true) then return 2 end
  return 0
end
local mine = ARGV[1] .. '.'
if ARGV[2] ~= '' then mine = mine .. ARGV[2] .. '.' end
if string.sub(token, 1, #mine) ~= mine then return 1 end
-- Extends, never shortens.
if redis.call('PTTL', KEYS[1]) < tonumber(ARGV[3]) then redis.call('PEXPIRE', KEYS[1], ARGV[3]) end
return token
