-- A writer becomes a reader. Redisson wakes no waiter then; readers may come in all the same.
local side = side_of(ME)
if not side or not is_meant() then return why_gone() end
if side == 'write' then
  call('HSET', LOCK, 'mode', 'read', ME, 1)
  call('SET', lease_key(ME, 1), 1, 'PX', LEASE)
  call('HDEL', LOCK, ME .. ':write')
  tell(RW_CHANNEL, '1')
else
  extend_reader(ME)
end
return renewed(fence_of(ME))
