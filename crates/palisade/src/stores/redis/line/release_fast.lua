-- The fast paths: the one exclusive holder releases, to nobody or to a plain exclusive claim that heads the line.
if is_own and (ending == 'r' or ending == 'n') and (letter == 120 or letter == 119)
  and last % 1 == 0 and last >= 0 and now < since + span then
  local spare = kept * 1000000 - now - 605000000
  if spare >= 0 and spare <= 1195000000 then
    if letter == 120 then
      call('HSET', key, 's', write('<BBdd', 49, 105, kept, last))
      return 1
    end
    local slot = 'q' .. sub(state, 84, 91)
    local record = #state > 107 and call('HGET', key, slot)
    if record and last < 9007199254740991 and sub(record, 57, 60) == 'x   ' then
      local sure, head, holes, count = read('<dddd', state, 76)
      local waits, _, next_lease, next_claim = read('<dddc32', record)
      local ends = waits + (next_lease < 5000000 and next_lease or 5000000)
      local colon = string.find(record, ':', 61, true)
      if colon and waits <= now and now < ends and (head + holes + count) % 1 == 0 then
        local fence = last < now and now or last + 1
        -- It keeps the expiry that it had as a waiter.
        local kind, meta, held = sub(state, 75, 75), sub(record, 61)
        if count == 1 then
          held = write('<BBdddddc32c1c0', 49, 120, kept, fence, ends - next_lease, now, next_lease, next_claim, kind, meta)
        else
          held = write('<BBdddddc32c1ddddc0', 49, 119, kept, fence, ends - next_lease, now, next_lease, next_claim, kind,
            sure, head + 1, holes, count - 1, meta)
        end
        call('HDEL', key, slot, 'c' .. next_claim)
        call('HSET', key, 's', held)
        local inbox = sub(record, colon + 1, colon + sub(record, 61, colon - 1))
        if ending == 'n' then
          -- A server writes first to whom it spoke last, and that would be us, who only hear that it is done. With a word to
          -- ourselves, which says nothing, it is the next one, for whom all others wait.
          local at = string.find(state, ':', 108, true)
          local own = at and sub(state, at + 1, at + sub(state, 108, at - 1))
          if own and own ~= inbox then redis.pcall('PUBLISH', own, '') end
        end
        -- A push that is lost is healed by the next renewal: it must not undo what was done.
        redis.pcall('PUBLISH', inbox, write('<c1c32d', 'g', next_claim, fence))
        return 1
      end
    end
  end
end
