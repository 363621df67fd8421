-- ARGV: claim, fence (empty while none is known), ending (r release, u undo, s seal), and for a seal how long.
local claim = ARGV[1]

-- The fast paths: the one exclusive holder releases, to nobody or to a plain exclusive claim that heads the line.
if state and not state.err and ARGV[3] == 'r' and #time[1] == 10 and sub(state, 13, 44) == claim then
  -- 49 is 1, 119 w, 120 x: bytes are cheaper to compare than texts.
  local version, letter = string.byte(state, 1, 2)
  local fence = sub(state, 45, 60)
  if version == 49 and (letter == 120 or letter == 119) and (ARGV[2] == fence or ARGV[2] == '') then
    local last, lease = tonumber(fence), tonumber(sub(state, 93, 108))
    local spare = (tonumber(sub(state, 3, 12)) or 0) * 1000000 - now - 605000000
    if last and lease and now < (tonumber(sub(state, 61, 76)) or 0) + lease and spare >= 0 and spare <= 1195000000 then
      if letter == 120 then
        call('HSET', key, 's', '1i' .. sub(state, 3, 12) .. fence)
        return 1
      end
      local slot = 'q' .. sub(state, 126, 137)
      local record = call('HGET', key, slot)
      if record and last < 9007199254740991 and sub(record, 81, 84) == 'x   ' then
        local since, next_lease = tonumber(sub(record, 33, 48)), tonumber(sub(record, 65, 80))
        local ends = since and next_lease and since + (next_lease < 5000000 and next_lease or 5000000)
        local head, count = tonumber(sub(state, 126, 137)), tonumber(sub(state, 150, 161))
        local colon = string.find(record, ':', 85, true)
        if ends and head and count and colon and since <= now and now < ends then
          local next_claim, meta = sub(record, 1, 32), sub(record, 85)
          local fence_text = last < now and now_text or string.format('%016.0f', last + 1)
          -- It keeps the expiry that it had as a waiter.
          local held = sub(state, 3, 12) .. next_claim .. fence_text .. string.format('%016.0f', ends - next_lease)
            .. now_text .. sub(record, 65, 80) .. sub(state, 109, 109)
          call('HDEL', key, slot, 'c' .. next_claim)
          if count == 1 then
            call('HSET', key, 's', '1x' .. held .. meta)
          else
            call('HSET', key, 's', '1w' .. held .. sub(state, 110, 125)
              .. string.format('%012.0f%s%012.0f', head + 1, sub(state, 138, 149), count - 1) .. meta)
          end
          -- A push that is lost is healed by the next renewal: it must not undo what was done.
          redis.pcall('PUBLISH', sub(record, colon + 1, colon + sub(record, 85, colon - 1)), 'g' .. next_claim .. fence_text)
          return 1
        end
      end
    end
  end
end
