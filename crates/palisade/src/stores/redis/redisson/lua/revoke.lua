-- Ends the grant with this fence; without one the lock of a peer, as a whole. Replies 1; 0 when
-- the name is not held; or the fence of another grant, which is nothing for a peer's.
if is_semaphore() then return revoke_permits() end
local fields = call('HGETALL', LOCK)
if #fields == 0 then return 0 end
local is_rwlock = call('HEXISTS', LOCK, 'mode') == 1

local other, is_peers = '', false
for at = 1, #fields, 2 do
  local field = fields[at]
  local owner = string.gsub(field, ':write$', '')
  local fence = fence_of(owner)
  if fence and fence == FENCE then
    if not is_rwlock then free_mutex(owner) elseif field ~= owner then end_writer(owner) else end_reader(owner) end
    -- So that its next renewal is told of the revocation.
    call('HSET', NOTES, 'revoked', owner)
    extend(NOTES, KEEP)
    return 1
  end
  if field ~= 'mode' then other, is_peers = fence or other, is_peers or not fence end
end
if FENCE ~= '' or not is_peers then return other end
if is_rwlock then free_rwlock('', '1') else free_mutex('') end
return 1
