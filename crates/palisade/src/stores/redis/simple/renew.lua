-- KEYS: the lock, its last fence. ARGV: claim, fence or nothing, lease in ms. Replies the token
-- while it is this grant's; 0 when the store has no record of it, 1 when another holder has it, 2
-- when it was revoked, 3 when a grant as late as this one has ended.
local KEEP_FENCE = 600000 -- ms
local token = redis.call('GET', KEYS[1])
if not token then
  local kept = redis.call('GET', KEYS[2]) or ''
  if string.find(kept, ' ' .. ARGV[1], 1, true) then return 2 end
  local last, fence = tonumber(string.match(kept, '^%d+')), tonumber(ARGV[2])
  return last and fence and fence <= last and 3 or 0
end
local mine = ARGV[1] .. '.'
if ARGV[2] ~= '' then mine = mine .. ARGV[2] .. '.' end
if string.sub(token, 1, #mine) ~= mine then return 1 end
-- Extends, never shortens. The last fence must outlive the lock, however long that is held.
if redis.call('PTTL', KEYS[1]) < tonumber(ARGV[3]) then redis.call('PEXPIRE', KEYS[1], ARGV[3]) end
redis.call('SET', KEYS[2], string.match(token, '^%x+%.(%d+)%.'), 'PX', ARGV[3] + KEEP_FENCE)
return token
