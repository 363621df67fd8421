-- The value and the version of a key that swap.lua writes.
--
-- Replies  none | ok VERSION VALUE | foreign WHAT
local kind = redis.call('TYPE', KEYS[1]).ok
if kind == 'none' then return {'none'} end
if kind ~= 'hash' then return {'foreign', kind} end
local mark, version, value = unpack(redis.call('HMGET', KEYS[1], 'palisade', 'version', 'value'))
if mark ~= 'versioned:1' then return {'foreign', mark or 'hash'} end
if not value then return {'none'} end
return {'ok', version or '', value}
