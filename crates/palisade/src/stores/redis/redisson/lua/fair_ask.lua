-- Asks for a fair lock. ARGV[7]: `try`, `wait` or `again` for a waiter that renews its place;
-- ARGV[8]: how long it then lives without renewal, in ms. Replies the fence; the holder, and behind
-- it the place of the waiter and after how many ms time alone changes something; or why it is gone.
local HOW, LIVES = ARGV[7], tonumber(ARGV[8])
if is_semaphore() then return refused('semaphore') end
if call('HEXISTS', LOCK, 'mode') == 1 then return refused('rwlock') end
if call('HEXISTS', LOCK, ME) == 1 and is_meant() then return renewed(fence_of(ME)) end
local place = FENCE == '' and call('LPOS', QUEUE, ME)
if HOW == 'again' and not place then
  if FENCE == '' then call('HDEL', WAITERS, ME) end
  return why_gone()
end
if place then call('HSET', WAITERS, ME, string.format('%.0f', now + LIVES) .. '.' .. LABEL) end
local head, head_ends, has_changed = first()
place = place and call('LPOS', QUEUE, ME)
if call('EXISTS', LOCK) == 0 and (not head or head == ME) then
  local last = last_fence()
  if not last then return refused('counter') end
  if head then
    call('LPOP', QUEUE)
    forget(ME)
    shift(0, WAIT)
  end
  call('HSET', LOCK, ME, 1)
  call('PEXPIRE', LOCK, LEASE)
  return note(next_fence(last), true)
end
if HOW ~= 'try' then
  if not place then
    place = call('LLEN', QUEUE)
    local behind = call('LINDEX', QUEUE, -1)
    local due = time_at(place)
    if behind then due = math.max(due, tonumber(call('ZSCORE', TIMES, behind) or '0') + WAIT) end
    call('ZADD', TIMES, string.format('%.0f', due), ME)
    call('RPUSH', QUEUE, ME)
  end
  stay(place, LIVES)
end
local reply = holder()
local left, ask_in = reply[1], -1
if left == -2 then
  ask_in = head_ends - now
  if has_changed and head ~= ME then tell(channel_of(head), '0') end
elseif place == 0 or HOW == 'try' then
  ask_in = left
end
reply[4], reply[5] = place or -1, ask_in
return reply
