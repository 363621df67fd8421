-- Whether this claim holds by this fence, alone, and has not expired. `state` is the field s of the lock's key, `now` the
-- time of the server in microseconds. Changes nothing.
local function holds(state, claim, fence, now)
  fence = tonumber(fence)
  if not state or not fence then return false end
  local form = string.sub(state, 1, 2)
  if form == '1x' or form == '1w' then
    return string.sub(state, 13, 44) == claim and tonumber(string.sub(state, 45, 60)) == fence
      and now < (tonumber(string.sub(state, 61, 76)) or 0) + (tonumber(string.sub(state, 93, 108)) or 0)
  end
  if form ~= '1g' then return false end
  local ok, general = pcall(cmsgpack.unpack, string.sub(state, 13))
  if not ok or type(general) ~= 'table' or type(general[7]) ~= 'table' then return false end
  for _, holder in ipairs(general[7]) do
    if holder[3] == claim and holder[9] == fence and holder[4] == 'x' and not holder[10] then
      return now < holder[1] + holder[2]
    end
  end
  return false
end
