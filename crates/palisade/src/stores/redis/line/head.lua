-- The head of every script. A script is one atomic step of the server.
local call, sub = redis.call, string.sub
local read, write = struct.unpack, struct.pack

-- The first two bytes of a state, as numbers, which are cheaper to compare than texts: the version
-- `1`, and the form `i`, `x` or `w`. The body follows.
local V1, IDLE, HELD, QUEUED, BODY_AT = 49, 105, 120, 119, 3
-- How a state is packed: version, form, the second until which the key lives, the last fence; since,
-- began, lease, claim and kind of the holder; the numbers of the queue; the holder's meta.
local IDLE_LAYOUT, HELD_LAYOUT, QUEUED_LAYOUT = '<BBdd', '<BBdddddc32c1c0', '<BBdddddc32c1ddddc0'
-- Where the parts of a state are: the holder's claim and kind, the numbers of the queue (alive_until,
-- head, holes, count), the meta without and with a queue.
local IDLE_SIZE, HOLDER_AT, HOLDER_END, KIND_AT = 18, 43, 74, 75
local QUEUE_AT, HEAD_AT, HEAD_END, HELD_META, QUEUED_META = 76, 84, 91, 76, 108
-- Where the mode of a waiter is, the mode of a plain exclusive waiter, and where the meta of such a
-- waiter is.
local MODE_AT, PLAIN, PLAIN_META = 57, 'x   ', 61

-- A double counts no further than 2^53 - 1.
local MAX_FENCE = 9007199254740991
-- Spans in microseconds: the longest wait lease; how long the last fence outlives everything else
-- in the key; and how much longer the key may live, so that EXPIREAT is seldom needed.
local SECOND, LONGEST_WAIT, KEEP_FENCE, KEEP_SPARE = 1000000, 5000000, 600000000, 600000000

-- The time of the step. A script may write after TIME: effects replication is the default since
-- Redis 5.
local time = call('TIME')
local now = time[1] * SECOND + time[2]
