-- The head of every script: the time. All that a script does happens at once.
--
-- Nothing here asks for effects replication: it is the default since Redis 5, so a script may write after TIME.
local call, sub = redis.call, string.sub
local read, write = struct.unpack, struct.pack
local time = call('TIME')
local now = time[1] * 1000000 + time[2]
