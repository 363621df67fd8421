-- KEYS: the lock, its last fence. ARGV: the fence of the grant, or nothing for a peer's.
local KEEP_FENCE = 600000 -- ms
local CLAIM_SIZE = 32
local token = redis.call('GET', KEYS[1])
if not token then return 0 end
local fence = ''
if string.sub(token, CLAIM_SIZE + 1, CLAIM_SIZE + 1) == '.' then fence = string.match(token, '^%x+%.(%d+)%.') or '' end
if fence ~= ARGV[1] then return token end
redis.call('DEL', KEYS[1])
if fence ~= '' then
  -- Where a quorum decides, a higher one may have been stored before.
  local last = string.match(redis.call('GET', KEYS[2]) or '', '^%d+') or '0'
  if tonumber(last) < tonumber(fence) then last = fence end
  -- With the claim, so that its next renewal is told of the revocation.
  redis.call('SET', KEYS[2], last .. ' ' .. string.sub(token, 1, CLAIM_SIZE), 'PX', KEEP_FENCE)
end
return 1
