-- Sets or removes a value, if the version that is expected stands there.
--
-- KEYS[1]  the key: a hash with the fields palisade, version, token (of the swap that made it), was (the version that it
--          replaced, if any), and value, which is absent when it was removed
-- ARGV     expected version ('': no value), token, ms to keep the version without a value, verb ('set', 'remove'), value
-- Answers  done VERSION | conflict DIRECT [VERSION VALUE] | foreign WHAT | corrupt VERSION
--          DIRECT is 1 when what stands there has replaced the expected version itself
local key, expected, token, keep, verb, value = KEYS[1], ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[4], ARGV[5]

local kind = redis.call('TYPE', key).ok
if kind ~= 'none' and kind ~= 'hash' then return {'foreign', kind} end
local mark, version, author, was, standing = unpack(redis.call('HMGET', key, 'palisade', 'version', 'token', 'was', 'value'))
if kind == 'hash' then
  if mark ~= 'versioned:1' then return {'foreign', mark or 'hash'} end
  -- Below 2^53 - 1, so that a Lua number keeps every digit of it and of the next.
  if not version or not version:find('^[1-9][0-9]*$') or tonumber(version) >= 9007199254740991 then
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
