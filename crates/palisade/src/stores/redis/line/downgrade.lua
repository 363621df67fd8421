-- Turns the write side that this claim holds into a read side.
expire()
local holder = live_holder(tonumber(fence))
if holder and holder[MODE] == 'x' then
  holder[MODE], kind = 's', 'r'
end
local reply = renew_claim(tonumber(fence) or 0) or why_gone(tonumber(fence))
hand_off()
save()
return reply
