-- What all scripts of the format begin with. KEYS: the lock, the counter of its fences, our notes;
-- of a fair lock the queue, the times at which its waiters give up, and our notes about waiters; of a
-- semaphore the permits that expire, those of ours where none expire, and how many there are.
-- ARGV: the name as it stands in companion keys, flags, the field of the claim, its fence or
-- nothing, its lease in ms, its label.
local LOCK, COUNTER, NOTES, QUEUE, TIMES, WAITERS = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local NAME, FLAGS, ME, FENCE, LEASE, LABEL = ARGV[1], ARGV[2], ARGV[3], ARGV[4], tonumber(ARGV[5]), ARGV[6]
-- How long the last fence, and the note of a revocation, outlive the lock, in ms.
local KEEP = 600000
local call = redis.call

local function flag(letter)
  return string.find(FLAGS, letter, 1, true) ~= nil
end

-- A message that cannot be sent, for lack of a right or in a server without shards, must not undo
-- the step.
local function tell(channel, payload)
  redis.pcall('PUBLISH', channel, payload)
  if flag('c') then redis.pcall('SPUBLISH', channel, payload) end
end

local function extend(key, ms)
  if call('PTTL', key) < ms then call('PEXPIRE', key, ms) end
end

-- Whether the key is a semaphore. A string that is no number belongs to another program.
local function is_semaphore()
  return call('TYPE', LOCK).ok == 'string' and string.match(call('GET', LOCK), '^-?%d+$') ~= nil
end

-- The last fence that was given; nil when the counter holds no number.
local function last_fence()
  return tonumber(call('GET', COUNTER) or '0')
end

local function next_fence(last)
  local time = call('TIME')
  local fence = time[1] * 1000000 + time[2]
  if last >= fence then fence = last + 1 end
  return string.format('%.0f', fence)
end

-- The counter of a fenced lock has no end. Others end by themselves.
local function keep_counter(ms)
  local left = call('PTTL', COUNTER)
  if left ~= -1 and flag('n') then call('PERSIST', COUNTER) end
  if left >= 0 and left < ms and not flag('n') then call('PEXPIRE', COUNTER, ms) end
end

-- Forgets holders whose leases have ended. A claim that was revoked is still told so.
local function forget_holders()
  local revoked = call('HGET', NOTES, 'revoked')
  call('DEL', NOTES)
  if revoked and revoked ~= ME then call('HSET', NOTES, 'revoked', revoked) end
end

-- Notes a grant of a name: its fence, and who has it. `alone`: no other holds.
local function note(fence, alone)
  local is_new, left = call('EXISTS', COUNTER) == 0, LEASE + KEEP
  if is_new and not flag('n') then
    call('SET', COUNTER, fence, 'PX', left)
  else
    local ends = call('PTTL', COUNTER)
    call('SET', COUNTER, fence)
    if ends >= 0 and not flag('n') then call('PEXPIRE', COUNTER, math.max(ends, left)) end
  end
  if alone then forget_holders() end
  call('HSET', NOTES, ME, fence .. '.' .. LABEL)
  extend(NOTES, left)
  return fence
end

-- The fence of a grant that holds; nil for a peer's.
local function fence_of(field)
  return string.match(call('HGET', NOTES, field) or '', '^%d+')
end

-- Whether a claim that holds is the one that is meant.
local function is_meant()
  local fence = fence_of(ME)
  return FENCE == '' or not fence or fence == FENCE
end

-- Why a claim does not hold: 0 the store has no record of it, 1 another holds, 2 it was revoked, 3 a
-- grant as late as this one has ended.
local function why_gone()
  if call('HGET', NOTES, 'revoked') == ME then return 2 end
  if call('EXISTS', LOCK) == 1 then return 1 end
  local last, fence = last_fence(), tonumber(FENCE)
  return last and fence and fence <= last and 3 or 0
end

local function keep_notes(fence)
  extend(NOTES, LEASE + KEEP)
  keep_counter(LEASE + KEEP)
  return fence or FENCE ~= '' and FENCE or 0
end

local function renewed(fence)
  extend(LOCK, LEASE)
  return keep_notes(fence)
end

-- The name is held: for how long still, and the field, mode and note of a holder.
local function holder()
  local fields, left = call('HGETALL', LOCK), call('PTTL', LOCK)
  for at = 1, #fields, 2 do
    local field = fields[at]
    if field ~= 'mode' then
      local owner = string.gsub(field, ':write$', '')
      return { left, field, call('HGET', NOTES, owner) or '' }
    end
  end
  return { left, '', '' }
end

-- The lock has no holder any more.
local function free(owner)
  call('DEL', LOCK)
  call('HDEL', NOTES, owner)
  keep_counter(KEEP)
end

local function refused(why)
  return { '?', why }
end
