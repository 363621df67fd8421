-- The time of the step. Nothing here asks for effects replication: it is the default since Redis 5, so a script may write after TIME.
local time = call('TIME')
local now = time[1] * 1000000 + time[2]
