-- Sets or removes a value, if the key has the expected version.
--
-- KEYS[1]  the key: a hash with the fields palisade, version, token (of the swap that wrote it),
--          was (the version that it replaced, if any), and value (absent when it was removed)
-- ARGV     expected version ('': no value), token, ms to keep the version without a value,
--          verb ('set', 'remove'), value
-- Replies  done VERSION | conflict DIRECT [VERSION VALUE] | foreign WHAT | corrupt VERSION
--          DIRECT is 1 when the current version replaced the expected one
-- 2^53 - 1: a Lua number has every digit of a version below it, and of the next version.
local MAX_VERSION = 9007199254740991
local key, expected, token, keep, verb, value = KEYS[1], ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[4], ARGV[5]

local kind = redis.call('TYPE', key).ok
if kind ~= 'none' and kind ~= 'hash' then return {'foreign', kind} end
local mark, version, author, was, standing = unpack(redis.call('HMGET', key, 'palisade', 'version', 'token', 'was', 'value'))
if kind == 'hash' then
  if mark ~= 'versioned:1' then return {'foreign', mark or 'hash'} end
  if not version or not version:find('^[1-9][0-9]*$') or tonumber(version) >= MAX_VERSION then
    return {'corrupt', version or ''}
  end
  -- The same swap, sent again.
  if author == token then return {'done', version} end
end
if expected ~= (standing and version or '') then
  local direct = (expected ~= '' and was == expected) and '1' or '0'
  if standing then return {'conflict', direct, version, standing} end
  return {'conflict', direct}
end

local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local next = string.format('%.0f', math.max(tonumber(version or '0') + 1, now))
redis.call('HSET', key, 'palisade', 'versioned:1', 'version', next, 'token', token, 'was', version or '')
if verb == 'set' then
  redis.call('HSET', key, 'value', value)
  redis.call('PERSIST', key)
else
  redis.call('HDEL', key, 'value')
  redis.call('PEXPIRE', key, keep)
end
return {'done', next}
