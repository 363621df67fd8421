-- Extends what the claim holds: a lock, or one side of a read/write lock.
local side = call('HEXISTS', LOCK, ME) == 1 and 'lock'
if call('HEXISTS', LOCK, 'mode') == 1 then side = side_of(ME) end
if not side or not is_meant() then return why_gone() end
if side == 'read' then extend_reader(ME) end
return renewed(fence_of(ME))
