-- The head of every script. A script is one atomic step.
local call, sub = redis.call, string.sub
local read, write = struct.unpack, struct.pack

-- The first bytes of a state, as numbers, which are cheaper to compare than texts: the version, and the letters i, x and w of a form.
local V1, IDLE, HELD, QUEUED = 49, 105, 120, 119
-- Where the parts of a state are: the size of an idle one; of the others the holder's claim, the kind, the head of the line, the meta.
local IDLE_SIZE, HOLDER_AT, HOLDER_END, KIND_AT, HEAD_AT, HEAD_END, HELD_META, QUEUED_META = 18, 43, 74, 75, 84, 91, 76, 108
-- Where the mode of a waiter is, the mode of a plain exclusive waiter, and where the meta of such a waiter is.
local MODE_AT, PLAIN, PLAIN_META = 57, 'x   ', 61

-- A double counts no further than 2^53 - 1.
local MAX_FENCE = 9007199254740991
-- Spans in microseconds: the longest wait lease; how long the last fence outlives everything else in the key; and how much longer the
-- key may live, so that EXPIREAT is seldom needed.
local SECOND, LONGEST_WAIT, KEEP_FENCE, KEEP_SPARE = 1000000, 5000000, 600000000, 600000000
