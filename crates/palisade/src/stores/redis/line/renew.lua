-- Renews one claim, waiting or holding, and says where it stands.
expire()
local reply = renew_claim(tonumber(fence), inbox) or why_gone(tonumber(fence))
hand_off()
save()
return reply
