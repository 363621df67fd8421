-- The time of the step. A script may write after TIME: effects replication is the default since Redis 5.
local time = call('TIME')
local now = time[1] * SECOND + time[2]
