-- The head of every script: the state of the line, and the time.
--
-- Nothing here asks for effects replication: it is the default since Redis 5, so a script may write after TIME.
local call, sub, key = redis.call, string.sub, KEYS[1]
local read, write = struct.unpack, struct.pack
-- Not `call`: a key of another type must become an answer that says so.
local state = redis.pcall('HGET', key, 's')
local time = call('TIME')
local now = time[1] * 1000000 + time[2]
