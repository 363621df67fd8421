-- Whether this claim holds by this fence, alone, and has not expired. `state` is the field s of the
-- lock's key, `now` the time of the server in microseconds. Changes nothing.
local function holds(state, claim, fence, now)
  -- As in head.lua and line.lua.
  local HELD_META, FENCE_AT, GENERAL_AT, HOLDERS = 76, 11, 11, 7
  local SINCE, SPAN, CLAIM, MODE, FENCE, GHOST = 1, 2, 3, 4, 9, 10
  fence = tonumber(fence)
  if not state or not fence then return false end
  local form = string.sub(state, 1, 2)
  if form == '1x' or form == '1w' then
    if #state < HELD_META then return false end
    local last, since, _, span, holder = struct.unpack('<ddddc32', state, FENCE_AT)
    return holder == claim and last == fence and now < since + span
  end
  if form ~= '1g' then return false end
  local ok, general = pcall(cmsgpack.unpack, string.sub(state, GENERAL_AT))
  if not ok or type(general) ~= 'table' or type(general[HOLDERS]) ~= 'table' then return false end
  for _, holder in ipairs(general[HOLDERS]) do
    if holder[CLAIM] == claim and holder[FENCE] == fence and holder[MODE] == 'x' and not holder[GHOST] then
      return now < holder[SINCE] + holder[SPAN]
    end
  end
  return false
end
