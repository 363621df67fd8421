expire()
local said = stand(tonumber(ARGV[2]), ARGV[3]) or why_gone()
hand_off()
save()
return said
