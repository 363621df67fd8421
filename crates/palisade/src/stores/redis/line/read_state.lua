-- The beginning of every verb: the state of the line. Not `call`: a key of another type must become
-- a reply that says so.
local state = redis.pcall('HGET', key, 's')
-- A key without the field is another program's hash. Seldom asked: a name in use has the field.
if not state and call('EXISTS', key) == 1 then return { '?', 'type' } end
