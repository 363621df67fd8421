-- The new owner comes behind its length.
expire()
local holder = live_holder(tonumber(fence))
if holder then
  local meta = holder[META]
  local _, owner_at = inbox_of(meta)
  local _, behind = inbox_of(sub(meta, owner_at))
  holder[META] = sub(meta, 1, owner_at - 1) .. owner .. sub(meta, owner_at + behind - 1)
end
local reply = renew_claim(tonumber(fence) or 0) or why_gone(tonumber(fence))
hand_off()
save()
return reply
