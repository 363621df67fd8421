expire()
local said = stand(tonumber(fence), inbox) or why_gone()
hand_off()
save()
return said
