-- Takes a lock that is free. Replies the fence, or the holder.
if call('EXISTS', LOCK) == 0 then
  local last, head = last_fence(), call('LINDEX', QUEUE, 0)
  if not last then return refused('counter') end
  if head then
    local time, ends = call('TIME'), tonumber(call('ZSCORE', TIMES, head) or '0')
    if ends > time[1] * 1000 then return refused('fair') end
  end
  call('HSET', LOCK, ME, 1)
  call('PEXPIRE', LOCK, LEASE)
  return note(next_fence(last), true)
end
if is_semaphore() then return refused('semaphore') end
if call('HEXISTS', LOCK, 'mode') == 1 then return refused('rwlock') end
-- The reply to the first attempt was lost: the claim finds its own grant, and renews it.
if call('HEXISTS', LOCK, ME) == 1 then return renewed(fence_of(ME)) end
return holder()
