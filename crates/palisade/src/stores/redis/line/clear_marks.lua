-- Replies 1 if there was a mark, a seal or a min-hold, else 0.
expire()
local cleared = (mark or seal) and 1 or 0
mark, seal = false, false
for _, holder in ipairs(holders) do
  if holder[MIN_HOLD] > 0 and holder[BEGAN] + holder[MIN_HOLD] > now then cleared = 1 end
  -- An undo must not bring an earlier mark back.
  holder[MIN_HOLD], holder[MARK_BEFORE] = 0, false
end
drop_ended_holders()
hand_off()
save()
return cleared
