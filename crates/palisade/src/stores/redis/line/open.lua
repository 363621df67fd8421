-- The head of every script. All that a script does happens at once.
local call, sub = redis.call, string.sub
local read, write = struct.unpack, struct.pack
