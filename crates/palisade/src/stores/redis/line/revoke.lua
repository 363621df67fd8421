-- Ends the grant that has this fence, and grants to the next in line.
local function end_grant(fence)
  for at, holder in ipairs(holders) do
    if holder[FENCE] == fence then
      table.remove(holders, at)
      -- The owner of a ghost is already gone.
      if not holder[GHOST] then add_tombstone(holder, holder[SPAN], 'r') end
      return 'D'
    end
  end
  for _, holder in ipairs(holders) do
    if not holder[GHOST] then return holder[FENCE] end
  end
  return holders[1] and holders[1][FENCE] or 'N'
end

expire()
local reply = end_grant(tonumber(fence))
hand_off()
save()
return reply
