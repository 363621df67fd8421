-- The head of every script: the state of the line, and the time.
--
-- Nothing here asks for effects replication: it is the default since Redis 5, so a script may write after TIME.
local call, sub, key = redis.call, string.sub, KEYS[1]
-- Not `call`: a key of another type must become an answer that says so.
local state = redis.pcall('HGET', key, 's')
local time = call('TIME')
local now = time[1] * 1000000 + time[2]
-- The time as 16 digits, cheaper than string.format; exact while the seconds have ten digits, which the fast paths check.
local now_text = time[1] .. sub('00000' .. time[2], -6)
