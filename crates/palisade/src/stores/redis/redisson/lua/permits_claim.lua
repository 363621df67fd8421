-- Takes permits. ARGV[7]: how many; ARGV[8]: how many there are, which is written where no client has
-- said it yet. Replies the fence, or a holder with the number of its permits.
local COUNT, LIMIT = tonumber(ARGV[7]), tonumber(ARGV[8])
if call('TYPE', LOCK).ok == 'hash' then
  return refused(call('HEXISTS', LOCK, 'mode') == 1 and 'rwlock' or 'mutex')
end
prune()
-- The reply to the first attempt was lost: the claim finds its own grant, and renews it.
if ends_at(ME, COUNT) then return extend_permits(COUNT) end
if call('EXISTS', OTHER) == 1 then return refused(EXPIRABLE and 'plain' or 'expirable') end
local last, noted = last_fence(), tonumber(call('HGET', NOTES, 'limit') or ARGV[8])
if not last then return refused('counter') end
local free = call('GET', LOCK)
if not free then
  free = LIMIT
  call('SET', LOCK, LIMIT)
elseif not is_semaphore() then
  return redis.error_reply('WRONGTYPE the key is not a semaphore')
elseif noted ~= LIMIT then
  -- A number that our own clients have agreed on changes only while all permits are free.
  if tonumber(free) ~= noted or call('EXISTS', HELD) == 1 then return { '?', 'limit', ARGV[8], tostring(noted) } end
  free = LIMIT
  call('SET', LOCK, LIMIT)
end
if tonumber(free) < COUNT then
  local first = held()[1]
  if not first then return { -1, '', '', 0 } end
  local left = first[3] - now
  return { left, first[1], call('HGET', NOTES, first[1]) or '', first[2] }
end
call('DECRBY', LOCK, COUNT)
for _, member in ipairs(members(ME, COUNT)) do call('ZADD', HELD, now + LEASE, member) end
call('HSET', NOTES, 'limit', LIMIT)
return note(next_fence(last), false)
