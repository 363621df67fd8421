-- ARGV: claim, fence.
expire()
local holder = live_holder(tonumber(ARGV[2]))
if holder and holder[MODE] == 'x' then
  holder[MODE], kind = 's', 'r'
end
local said = stand(tonumber(ARGV[2]) or 0) or why_gone()
hand_off()
save()
return said
