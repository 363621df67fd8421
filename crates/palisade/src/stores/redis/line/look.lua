-- The head of every verb: the state of the line. Not `call`: a key of another type must become an answer that says so.
local state = redis.pcall('HGET', key, 's')
