-- The read/write lock: the field mode, a field for each reader with its holds, the field of the
-- writer with :write behind it, and for each hold of a reader a key that lives as long as its lease.
local RW_CHANNEL = 'redisson_rwlock:' .. NAME

local function lease_key(owner, hold)
  return NAME .. ':' .. owner .. ':rwlock_timeout:' .. hold
end

-- How long the longest lease among the readers of these fields still runs; below zero where none
-- does.
local function readers_left(fields)
  local longest = -2
  for at = 1, #fields, 2 do
    local holds = tonumber(fields[at + 1])
    if holds and string.sub(fields[at], -6) ~= ':write' then
      for hold = holds, 1, -1 do
        local left = call('PTTL', lease_key(fields[at], hold))
        if left > longest then longest = left end
      end
    end
  end
  return longest
end

local function free_rwlock(owner, payload)
  free(owner)
  tell(RW_CHANNEL, payload)
end

-- Ends the last hold of a reader. The readers that are left may have shorter leases, and waiters are
-- told of that, too.
local function end_reader(owner)
  local holds = tonumber(call('HGET', LOCK, owner)) or 1
  for hold = holds, 1, -1 do call('DEL', lease_key(owner, hold)) end
  call('HDEL', LOCK, owner)
  local left = readers_left(call('HGETALL', LOCK))
  if left > 0 then
    call('HDEL', NOTES, owner)
    call('PEXPIRE', LOCK, left)
    tell(RW_CHANNEL, '0')
  elseif call('HGET', LOCK, 'mode') == 'read' then
    free_rwlock(owner, '0')
  end
end

-- Ends the writer. It may go on as a reader.
local function end_writer(owner)
  call('HDEL', LOCK, owner .. ':write')
  if call('HLEN', LOCK) == 1 then return free_rwlock(owner, '1') end
  call('HSET', LOCK, 'mode', 'read')
  tell(RW_CHANNEL, '1')
end

-- Whether the claim holds, and how: as a writer or as a reader. A reader whose own lease has ended
-- does not hold any more, though others keep the lock.
local function side_of(owner)
  if call('HEXISTS', LOCK, owner .. ':write') == 1 then return 'write' end
  if call('HEXISTS', LOCK, owner) == 1 and call('EXISTS', lease_key(owner, 1)) == 1 then return 'read' end
end

local function extend_reader(owner)
  extend(lease_key(owner, 1), LEASE)
end
