-- Takes one side of a read/write lock. ARGV[7]: read or write. Replies the fence, or a holder.
local SIDE = ARGV[7]
if is_semaphore() then return refused('semaphore') end
local mode = call('HGET', LOCK, 'mode')
if not mode and call('EXISTS', LOCK) == 1 then return refused('mutex') end
local held = mode and side_of(ME)
if held then
  -- The reply to the first attempt was lost: the claim finds its own grant, and renews it.
  if held == 'read' then extend_reader(ME) end
  return renewed(fence_of(ME))
end
if mode and (SIDE == 'write' or mode ~= 'read') then return holder() end
local last = last_fence()
if not last then return refused('counter') end
if SIDE == 'write' then
  call('HSET', LOCK, 'mode', 'write', ME .. ':write', 1)
else
  call('HSET', LOCK, 'mode', 'read', ME, 1)
  call('SET', lease_key(ME, 1), 1, 'PX', LEASE)
end
extend(LOCK, LEASE)
return note(next_fence(last), not mode)
