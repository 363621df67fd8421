-- Sets or deletes the value, installs or checks the fence, unless the key has a higher fence.
--
-- KEYS[1]  the key: a hash with the fields palisade, fence, value and, where the value ends, ends
--          (ms, by this server's clock)
-- ARGV     verb ('set', 'delete', 'install', 'check'), fence, ms to keep the fence without a value
--          (0: forever), ms until the value ends (0: never), value
-- Replies  ok [1: there was a value] | stale FENCE | foreign WHAT | corrupt FENCE | malformed
local MAX_FENCE = '9223372036854775807' -- 2^63 - 1
local key, verb, fence, keep, ttl, value = KEYS[1], ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4]), ARGV[5]

-- Digit by digit: a Lua number is a double and loses digits past 2^53, and `<` on strings depends on
-- the server's locale.
local function lower(a, b)
  if #a ~= #b then return #a < #b end
  for place = 1, #a do
    local x, y = a:byte(place), b:byte(place)
    if x ~= y then return x < y end
  end
  return false
end

-- No leading zeros: the longer number would not be the higher one.
local function is_fence(text)
  return text and text:find('^[1-9][0-9]*$') and not lower(MAX_FENCE, text)
end

if not is_fence(fence) then return {'malformed'} end
local kind = redis.call('TYPE', key).ok
if kind ~= 'none' and kind ~= 'hash' then return {'foreign', kind} end
local mark, highest, ends = unpack(redis.call('HMGET', key, 'palisade', 'fence', 'ends'))
if kind == 'hash' then
  if mark ~= 'fenced:1' then return {'foreign', mark or 'hash'} end
  if not is_fence(highest) then return {'corrupt', highest or ''} end
  if lower(fence, highest) then return {'stale', highest} end
end
if verb == 'check' then return {'ok'} end

local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
if ends and tonumber(ends) <= now then
  redis.call('HDEL', key, 'value', 'ends')
  ends = false
end
local was = redis.call('HEXISTS', key, 'value')

redis.call('HSET', key, 'palisade', 'fenced:1', 'fence', fence)
if verb == 'delete' then
  redis.call('HDEL', key, 'value', 'ends')
elseif verb == 'set' then
  ends = ttl > 0 and string.format('%.0f', now + ttl)
  redis.call('HSET', key, 'value', value)
  if ends then redis.call('HSET', key, 'ends', ends) else redis.call('HDEL', key, 'ends') end
end

-- The fence outlives the value by `keep`. While there is a value without an end, the key has none.
local last = now
if verb == 'set' or (verb == 'install' and was == 1) then last = ends and tonumber(ends) end
if last and keep > 0 then
  redis.call('PEXPIREAT', key, string.format('%.0f', last + keep))
else
  redis.call('PERSIST', key)
end
return {'ok', tostring(was)}
