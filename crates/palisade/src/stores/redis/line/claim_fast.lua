-- ARGV: claim, lease, how (q or n, kind, mode), meta, and only where one is asked for: min_hold, once_per.
local claim, lease_text, how, meta = ARGV[1], ARGV[2], ARGV[3], ARGV[4]

-- The fast paths: a plain exclusive claim that finds the name free, or held by one exclusive holder.
-- 49 is 1, 105 i, 119 w, 120 x: bytes are cheaper to compare than texts. A name without a key is idle.
local version, letter = 49, 105
if state then
  if state.err then version = 0 else version, letter = string.byte(state, 1, 2) end
end
local one = letter == 120 or letter == 119
if version == 49 and (one or letter == 105) and #time[1] == 10 and not ARGV[5]
  and (how == 'qmx' or how == 'qrx' or how == 'nmx' or how == 'nrx') then
  local kept_text, last, since, ends = '', 0, 0, 0
  if one then
    local lease = tonumber(sub(state, 93, 108))
    last, since = tonumber(sub(state, 45, 60)), tonumber(sub(state, 61, 76))
    if since and lease then ends = since + lease else last = nil end
  elseif state then
    last = tonumber(sub(state, 13))
  end
  if state then kept_text = sub(state, 3, 12) end
  local kept = (tonumber(kept_text) or 0) * 1000000
  if last and last < 9007199254740991 and since <= now and (kept > 0 or not state) then
    if ends <= now and letter ~= 119 then
      local fence, fence_text = now, now_text
      if last >= now then
        fence = last + 1
        fence_text = string.format('%016.0f', fence)
      end
      local spare = kept - now - lease_text - 600000000
      local stays = spare >= 0 and spare <= 1200000000
      if not stays then kept_text = string.format('%010.0f', math.ceil((now + lease_text) / 1000000) + 1200) end
      call('HSET', key, 's', '1x' .. kept_text .. claim .. fence_text .. now_text .. now_text .. lease_text .. sub(how, 2, 2) .. meta)
      if not stays then call('EXPIREAT', key, kept_text) end
      return fence
    elseif ends > now and sub(state, 13, 44) ~= claim then
      -- Whether all waiters are alive, or at least the first, so that this claim is not the first itself.
      local all_alive, first_alive = true, true
      if letter == 119 then
        local sure = tonumber(sub(state, 110, 125)) or 0
        all_alive = now < sure and sure <= now + 5000000
        if not all_alive then
          local first = call('HGET', key, 'q' .. sub(state, 126, 137))
          local wait = first and tonumber(sub(first, 65, 80)) or 0
          local queued = first and tonumber(sub(first, 33, 48)) or 0
          first_alive = queued <= now and now < queued + (wait < 5000000 and wait or 5000000)
        end
      end
      if first_alive then
        local answer = { 'B', 0, letter == 120 and ends - now or -1, last, 'x', now - (tonumber(sub(state, 77, 92)) or 0), ends - now }
        if sub(how, 1, 1) == 'n' then
          answer[8] = sub(state, letter == 120 and 110 or 162)
          return answer
        end
        local wait = lease_text + 0
        if wait > 5000000 then wait = 5000000 end
        if kept >= ends + 600000000 and kept >= now + 605000000 then
          local record = claim .. now_text .. now_text .. lease_text .. 'x   ' .. meta
          local kind = sub(how, 2, 2) == 'r' and 'r' or sub(state, 109, 109)
          answer[1] = 'Q'
          if letter == 120 then
            answer[8] = sub(state, 110)
            call('HSET', key, 's', '1w' .. sub(state, 3, 108) .. kind .. string.format('%016.0f', now + wait)
              .. '000000000000000000000000000000000001' .. answer[8], 'q000000000000', record, 'c' .. claim, '000000000000')
            return answer
          end
          local count = tonumber(sub(state, 150, 161))
          local seq = count and (tonumber(sub(state, 126, 137)) or 0) + (tonumber(sub(state, 138, 149)) or 0) + count
          if seq and not call('HGET', key, 'c' .. claim) then
            local sure_text = sub(state, 110, 125)
            if (tonumber(sure_text) or 0) > now + wait then sure_text = string.format('%016.0f', now + wait) end
            seq = string.format('%012.0f', seq)
            answer[2] = all_alive and count or -1
            answer[8] = sub(state, 162)
            call('HSET', key, 's', sub(state, 1, 108) .. kind .. sure_text .. sub(state, 126, 149)
              .. string.format('%012.0f', count + 1) .. answer[8], 'q' .. seq, record, 'c' .. claim, seq)
            return answer
          end
        end
      end
    end
  end
end
