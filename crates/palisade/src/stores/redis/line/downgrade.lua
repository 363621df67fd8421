expire()
local holder = live_holder(tonumber(fence))
if holder and holder[MODE] == 'x' then
  holder[MODE], kind = 's', 'r'
end
local said = stand(tonumber(fence) or 0) or why_gone()
hand_off()
save()
return said
