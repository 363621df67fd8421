-- ARGV: claim, lease, how (q or n, kind, mode), meta, and only where one is asked for: min_hold, once_per.
local claim, lease_text, how, meta = ARGV[1], ARGV[2], ARGV[3], ARGV[4]

-- The fast paths: a plain exclusive claim that finds the name free, or held by one exclusive holder.
if state and not state.err and #time[1] == 10 and sub(how, 3) == 'x' and not ARGV[5] then
  local form = sub(state, 1, 2)
  local one = form == '1x' or form == '1w'
  local last = tonumber(one and sub(state, 45, 60) or form == '1i' and sub(state, 13))
  local since = one and tonumber(sub(state, 61, 76)) or 0
  local ends = one and since + (tonumber(sub(state, 93, 108)) or 0) or 0
  local kept = (tonumber(sub(state, 3, 12)) or 0) * 1000000
  if last and last < 9007199254740991 and since <= now then
    if ends <= now then
      local spare = kept - now - lease_text - 600000000
      if form ~= '1w' and spare >= 0 and spare <= 1200000000 then
        local fence, fence_text = now, now_text
        if last >= now then
          fence = last + 1
          fence_text = string.format('%016.0f', fence)
        end
        call('HSET', key, 's', '1x' .. sub(state, 3, 12) .. claim .. fence_text .. now_text .. now_text
          .. lease_text .. sub(how, 2, 2) .. meta)
        return fence
      end
    elseif sub(state, 13, 44) ~= claim then
      -- Whether all waiters are alive, or at least the first, so that this claim is not the first itself.
      local all_alive, first_alive = true, true
      if form == '1w' then
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
        local answer = { 'B', 0, form == '1x' and ends - now or -1, last, 'x', now - (tonumber(sub(state, 77, 92)) or 0), ends - now }
        if sub(how, 1, 1) == 'n' then
          answer[8] = sub(state, form == '1x' and 110 or 162)
          return answer
        end
        local wait = lease_text + 0
        if wait > 5000000 then wait = 5000000 end
        if kept >= ends + 600000000 and kept >= now + 605000000 then
          local record = claim .. now_text .. now_text .. lease_text .. 'x   ' .. meta
          local kind = sub(how, 2, 2) == 'r' and 'r' or sub(state, 109, 109)
          answer[1] = 'Q'
          if form == '1x' then
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
