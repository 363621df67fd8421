-- Replies for how long the lock is held, the mode and the holders with our notes; and the waiters of a
-- fair lock, each with our note. A reader of ours whose lease has ended does not hold any more. Of a
-- semaphore, replies how many permits there are, where that is known, and each holder with our note
-- and the number of its permits.
if is_semaphore() then
  local holders = {}
  for _, holder in ipairs(held()) do
    holders[#holders + 1] = { holder[3] - now, holder[1], call('HGET', NOTES, holder[1]) or '', holder[2] }
  end
  return { tonumber(call('GET', TOTAL) or '0'), holders }
end
local fields, shown = call('HGETALL', LOCK), {}
for at = 1, #fields, 2 do
  local field = fields[at]
  local owner, is_writer = string.gsub(field, ':write$', '')
  local has, about = true, fields[at + 1]
  if field ~= 'mode' then
    about = call('HGET', NOTES, owner) or ''
    has = about == '' or is_writer == 1 or call('HEXISTS', LOCK, 'mode') == 0 or side_of(owner)
  end
  if has then
    shown[#shown + 1] = field
    shown[#shown + 1] = about
  end
end
local waiters = {}
if flag('f') then
  for _, waiter in ipairs(call('LRANGE', QUEUE, 0, -1)) do
    waiters[#waiters + 1] = waiter
    waiters[#waiters + 1] = call('HGET', WAITERS, waiter) or ''
  end
end
return { call('PTTL', LOCK), shown, waiters }
