-- Takes permits. ARGV[7]: how many; ARGV[8]: how many there are, which is written where no client has
-- said it yet. Replies the fence, or a holder with the number of its permits.
local COUNT, LIMIT = tonumber(ARGV[7]), ARGV[8]
if call('TYPE', LOCK).ok == 'hash' then
  return refused(call('HEXISTS', LOCK, 'mode') == 1 and 'rwlock' or 'mutex')
end
prune()
-- The reply to the first attempt was lost: the claim finds its own grant, and renews it.
if ends_at(ME, COUNT) then return extend_permits(COUNT) end
if call('EXISTS', OTHER) == 1 then return refused(EXPIRABLE and 'plain' or 'expirable') end
local last, free = last_fence(), call('GET', LOCK)
if not last then return refused('counter') end
local is_new = not free
if is_new then
  free = LIMIT
  call('SET', LOCK, LIMIT)
  call('SET', TOTAL, LIMIT)
elseif not is_semaphore() then
  return redis.error_reply('WRONGTYPE the key is not a semaphore')
else
  -- What a peer has set is not known. It may also have taken some, so the number is never set again.
  local total = call('GET', TOTAL) or LIMIT
  if total ~= LIMIT then return { '?', 'limit', LIMIT, total } end
end
if tonumber(free) < COUNT then
  local first = held()[1]
  if not first then return { -1, '', '', 0 } end
  local left = first[3] - now
  return { left, first[1], call('HGET', NOTES, first[1]) or '', first[2] }
end
local rest = call('DECRBY', LOCK, COUNT)
-- Peers may have waited for the semaphore to be made.
if is_new and rest > 0 then tell(CHANNEL, string.format('%.0f', rest)) end
for _, member in ipairs(members(ME, COUNT)) do call('ZADD', HELD, now + LEASE, member) end
return note(next_fence(last), false)
