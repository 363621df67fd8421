-- ARGV: claim, fence (empty while none is known), inbox.
local claim = ARGV[1]

-- The fast path: the one exclusive holder renews.
if state and not state.err and #time[1] == 10 and sub(state, 13, 44) == claim then
  -- 49 is 1, 119 w, 120 x: bytes are cheaper to compare than texts.
  local version, letter = string.byte(state, 1, 2)
  local fence = sub(state, 45, 60)
  if version == 49 and (letter == 120 or letter == 119) and (ARGV[2] == fence or ARGV[2] == '') then
    local since, lease = tonumber(sub(state, 61, 76)), tonumber(sub(state, 93, 108))
    local inbox_at = letter == 120 and 110 or 162
    if since and lease and since <= now and now < since + lease
      and (tonumber(sub(state, 3, 12)) or 0) * 1000000 >= now + lease + 600000000
      and sub(state, inbox_at, inbox_at + #ARGV[3] - 1) == ARGV[3] then
      call('HSET', key, 's', sub(state, 1, 60) .. now_text .. sub(state, 77))
      return tonumber(fence)
    end
  end
end
