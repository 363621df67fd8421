-- Whether this claim holds by this fence, alone, and has not expired. `state` is the field s of the lock's key, `now` the
-- time of the server in microseconds. Changes nothing.
local function holds(state, claim, fence, now)
  fence = tonumber(fence)
  if not state or not fence then return false end
  local form = string.sub(state, 1, 2)
  if form == '1x' or form == '1w' then
    if #state < 76 then return false end
    local last, since, _, span, holder = struct.unpack('<ddddc32', state, 11)
    return holder == claim and last == fence and now < since + span
  end
  if form ~= '1g' then return false end
  local ok, general = pcall(cmsgpack.unpack, string.sub(state, 11))
  if not ok or type(general) ~= 'table' or type(general[7]) ~= 'table' then return false end
  for _, holder in ipairs(general[7]) do
    if holder[3] == claim and holder[9] == fence and holder[4] == 'x' and not holder[10] then
      return now < holder[1] + holder[2]
    end
  end
  return false
end
