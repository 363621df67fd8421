-- Ends what the claim holds, or its place in the queue of a fair lock.
if call('HEXISTS', LOCK, 'mode') == 1 then
  local side = side_of(ME)
  if not is_meant() then return 0 end
  -- A reader whose lease has ended leaves its field behind.
  if side == 'write' then end_writer(ME) elseif call('HEXISTS', LOCK, ME) == 1 then end_reader(ME) end
  return side and 1 or 0
end
if call('HEXISTS', LOCK, ME) == 0 or not is_meant() then
  return FENCE == '' and flag('f') and leave() or 0
end
free_mutex(ME)
return 1
