-- Replies the fields of the lock, for how long it is held, the notes about its holders, the mode; and
-- the waiters of a fair lock, each with our note.
local fields, shown = call('HGETALL', LOCK), {}
for at = 1, #fields, 2 do
  local field = fields[at]
  local owner = string.gsub(field, ':write$', '')
  shown[#shown + 1] = field
  shown[#shown + 1] = field == 'mode' and fields[at + 1] or call('HGET', NOTES, owner) or ''
end
local waiters = {}
if flag('f') then
  for _, waiter in ipairs(call('LRANGE', QUEUE, 0, -1)) do
    waiters[#waiters + 1] = waiter
    waiters[#waiters + 1] = call('HGET', WAITERS, waiter) or ''
  end
end
return { call('PTTL', LOCK), shown, waiters }
