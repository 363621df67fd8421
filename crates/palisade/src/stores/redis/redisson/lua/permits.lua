-- A semaphore: a string with the number of free permits, and a set of permits that are held, with the
-- time in ms at which the lease of each ends. Redisson knows the set of an RPermitExpirableSemaphore
-- (the flag e), where each permit has an id of 16 bytes. Of an RSemaphore it keeps no holders at all:
-- ours stand in a set of our own, so that the permits of a dead client of ours come back.
local EXPIRABLE = flag('e')
local HELD, OTHER = KEYS[8], KEYS[7]
-- How many permits there are, where ours have made the semaphore. It stays as long as the number.
local TOTAL = KEYS[9]
if EXPIRABLE then HELD, OTHER = OTHER, HELD end
local CHANNEL = 'redisson_sc:' .. NAME
local time = call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)

local function id_of(owner)
  local hex = string.gsub(string.sub(owner, 1, 36), '-', '')
  return (string.gsub(hex, '%x%x', function(byte) return string.char(tonumber(byte, 16)) end))
end

local function hex_of(id)
  return (string.gsub(id, '.', function(byte) return string.format('%02x', string.byte(byte)) end))
end

-- The claim whose first permit has this id.
local function owner_of_id(id)
  local parts = { string.match(hex_of(id), '^(' .. string.rep('%x', 8) .. ')(%x%x%x%x)(%x%x%x%x)(%x%x%x%x)(%x+)$') }
  return table.concat(parts, '-') .. ':1'
end

-- What stands in the set for so many permits of a claim.
local function members(owner, count)
  if not EXPIRABLE then return { owner .. '/' .. string.format('%d', count) } end
  local id = id_of(owner)
  local ids = { id }
  for at = 2, count do ids[at] = string.sub(id, 1, 12) .. struct.pack('>I4', at) end
  return ids
end

-- The claim of a member, and how many permits the member stands for.
local function read_member(member)
  if EXPIRABLE then return owner_of_id(member), 1 end
  local owner, count = string.match(member, '^(.*)/(%d+)$')
  return owner or member, tonumber(count) or 1
end

-- When the lease of a claim ends; nil where it does not hold.
local function ends_at(owner, count)
  if call('EXISTS', LOCK) == 0 then return nil end
  local ends = tonumber(call('ZSCORE', HELD, members(owner, count)[1]) or '0')
  return ends > now and ends or nil
end

local function add_free(count)
  tell(CHANNEL, string.format('%.0f', call('INCRBY', LOCK, count)))
end

-- Takes back the permits whose leases have ended. Those of a semaphore that was deleted are gone.
local function prune()
  if call('EXISTS', LOCK) == 0 then return call('DEL', HELD) end
  local freed = 0
  for _, member in ipairs(call('ZRANGEBYSCORE', HELD, '-inf', now)) do
    local owner, count = read_member(member)
    call('ZREM', HELD, member)
    call('HDEL', NOTES, owner)
    freed = freed + count
  end
  if freed > 0 then add_free(freed) end
end

local function end_permits(owner, count)
  local freed = 0
  for _, member in ipairs(members(owner, count)) do
    if call('ZREM', HELD, member) == 1 then
      local _, each = read_member(member)
      freed = freed + each
    end
  end
  call('HDEL', NOTES, owner)
  keep_counter(KEEP)
  if freed > 0 then add_free(freed) end
end

-- The permits that are held, each claim once: its owner, how many, and when its lease ends. A permit
-- of a peer has its id for an owner.
local function held()
  local entries, by_owner, found = call('ZRANGEBYSCORE', HELD, '(' .. now, '+inf', 'WITHSCORES'), {}, {}
  for at = 1, #entries, 2 do
    local owner, count = read_member(entries[at])
    if not EXPIRABLE or call('HEXISTS', NOTES, owner) == 1 then
      found[#found + 1] = { owner, count, tonumber(entries[at + 1]) }
      if EXPIRABLE then by_owner[string.sub(entries[at], 1, 12)] = found[#found] end
    end
  end
  for at = 1, EXPIRABLE and #entries or 0, 2 do
    local ours = by_owner[string.sub(entries[at], 1, 12)]
    if not ours then
      found[#found + 1] = { hex_of(entries[at]), 1, tonumber(entries[at + 1]) }
    elseif owner_of_id(entries[at]) ~= ours[1] then
      ours[2] = ours[2] + 1
    end
  end
  return found
end

local function why_permits_gone()
  if call('HGET', NOTES, 'revoked') == ME then return 2 end
  local last, fence = last_fence(), tonumber(FENCE)
  return last and fence and fence <= last and 3 or 0
end

local function extend_permits(count)
  for _, member in ipairs(members(ME, count)) do
    local ends = tonumber(call('ZSCORE', HELD, member) or '0')
    if ends > now and ends < now + LEASE then call('ZADD', HELD, now + LEASE, member) end
  end
  return keep_notes(fence_of(ME))
end

-- Ends the permits with this fence. Those of a peer have none, and are left to their leases.
local function revoke_permits()
  local other = false
  for _, holder in ipairs(held()) do
    local owner, fence = holder[1], fence_of(holder[1])
    if fence and fence == FENCE then
      end_permits(owner, holder[2])
      -- So that its next renewal is told of the revocation.
      call('HSET', NOTES, 'revoked', owner)
      extend(NOTES, KEEP)
      return 1
    end
    other = other or fence or ''
  end
  return other or 0
end
