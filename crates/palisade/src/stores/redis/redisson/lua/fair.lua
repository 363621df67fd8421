-- The queue of a fair lock: a list, and for each waiter the time, in ms, at which it is given up. The
-- sum of the waits before a waiter is in its time: one that leaves takes its own wait from those
-- behind it.
--
-- A waiter of ours also has a note with the time until which it is alive. Ours find a dead one by that,
-- long before its time, and keep a live one whose time has passed.
local WAIT = 15000
-- What a waiter of Redisson takes from those behind it, when it is granted without a wait of its own.
local THEIR_WAIT = 300000
local MOST_LOOKED_AT = 64
local time = call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)

local function channel_of(waiter)
  return 'redisson_lock__channel:' .. NAME .. ':' .. waiter
end

local function alive_until(waiter)
  return tonumber(string.match(call('HGET', WAITERS, waiter) or '', '^%d+'))
end

local function forget(waiter)
  call('ZREM', TIMES, waiter)
  call('HDEL', WAITERS, waiter)
end

-- Takes a wait from the times of the waiters from a place on.
local function shift(from, wait)
  for _, waiter in ipairs(call('LRANGE', QUEUE, from, -1)) do
    if call('ZSCORE', TIMES, waiter) then call('ZINCRBY', TIMES, -wait, waiter) end
  end
end

-- The first waiter that is not given up, until when it lives, and whether others were given up.
local function first()
  local has_changed = false
  while true do
    local head = call('LINDEX', QUEUE, 0)
    if not head then
      call('DEL', WAITERS)
      return nil, now, has_changed
    end
    local ends, lives = tonumber(call('ZSCORE', TIMES, head) or '0'), alive_until(head)
    if lives then ends = lives end
    if ends > now or head == ME then return head, ends, has_changed end
    has_changed = true
    call('LPOP', QUEUE)
    forget(head)
    if lives then shift(0, WAIT) end
  end
end

-- Tells the first waiter that it may take the lock.
local function wake_first()
  local head = call('EXISTS', LOCK) == 0 and first()
  if head and head ~= ME then tell(channel_of(head), '0') end
end

-- The time of a waiter at this place, so late that neither the grants before it nor the waits of
-- those who leave make Redisson give it up while it lives.
local function time_at(place)
  if place == 0 then return now + WAIT end
  local before = call('LRANGE', QUEUE, 0, math.min(place, MOST_LOOKED_AT) - 1)
  local waits = WAIT * (place + 1)
  for _, waiter in ipairs(before) do
    if call('HEXISTS', WAITERS, waiter) == 0 then waits = waits + THEIR_WAIT - WAIT end
  end
  return now + waits
end

-- Notes that this waiter is alive for so long.
local function stay(place, wait)
  local due, ends = time_at(place), tonumber(call('ZSCORE', TIMES, ME) or '0')
  if place == 0 or due > ends then call('ZADD', TIMES, string.format('%.0f', due), ME) end
  call('HSET', WAITERS, ME, string.format('%.0f', now + wait) .. '.' .. LABEL)
  extend(WAITERS, KEEP)
end

local function leave()
  local place = call('LPOS', QUEUE, ME)
  if not place then return 0 end
  shift(place + 1, WAIT)
  call('LREM', QUEUE, 1, ME)
  forget(ME)
  wake_first()
  return 1
end

-- Frees a mutex. A fair one tells the next alone.
local function free_mutex(owner)
  free(owner)
  if flag('f') then wake_first() else tell('redisson_lock__channel:' .. NAME, '0') end
end
