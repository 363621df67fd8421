-- The fence is empty while none is known; the ending is r release, u undo, or s seal, which alone
-- is kept for a time.
--
-- The fast paths: the one exclusive holder releases, to no waiter or to a plain exclusive claim
-- that heads the line. A number that is none of ours compares as false.
local version, letter, kept, last, since, span, holder, _
if state and #state >= HELD_META then version, letter, kept, last, since, _, span, holder = read('<BBdddddc32', state) end
if holder == claim and version == V1 and (fence == '' or tonumber(fence) == last)
  and ending == 'r' and (letter == HELD or letter == QUEUED) and last % 1 == 0 and last >= 0 and now < since + span then
  local spare = kept * SECOND - now - LONGEST_WAIT - KEEP_FENCE
  if spare >= 0 and spare <= 2 * KEEP_SPARE - LONGEST_WAIT then
    if letter == HELD then
      call('HSET', key, 's', write(IDLE_LAYOUT, V1, IDLE, kept, last))
      return 1
    end
    local slot = 'q' .. sub(state, HEAD_AT, HEAD_END)
    local record = #state >= QUEUED_META and call('HGET', key, slot)
    if record and last < MAX_FENCE and sub(record, MODE_AT, PLAIN_META - 1) == PLAIN then
      local alive_until, head, holes, count = read('<dddd', state, QUEUE_AT)
      local waits, _, next_lease, next_claim = read('<dddc32', record)
      local ends = waits + (next_lease < LONGEST_WAIT and next_lease or LONGEST_WAIT)
      local colon = string.find(record, ':', PLAIN_META, true)
      if colon and waits <= now and now < ends and (head + holes + count) % 1 == 0 then
        local fence = last < now and now or last + 1
        -- The claim keeps the expiry that it had as a waiter.
        local kind, meta, held = sub(state, KIND_AT, KIND_AT), sub(record, PLAIN_META)
        if count == 1 then
          held = write(HELD_LAYOUT, V1, HELD, kept, fence, ends - next_lease, now, next_lease, next_claim, kind, meta)
        else
          held = write(QUEUED_LAYOUT, V1, QUEUED, kept, fence, ends - next_lease, now, next_lease, next_claim, kind,
            alive_until, head + 1, holes, count - 1, meta)
        end
        call('HDEL', key, slot, 'c' .. next_claim)
        call('HSET', key, 's', held)
        -- A push that is lost is healed by the next renewal: its failure must not undo the
        -- hand-off.
        local inbox = sub(record, colon + 1, colon + sub(record, PLAIN_META, colon - 1))
        redis.pcall('PUBLISH', inbox, write('<c1c32d', 'g', next_claim, fence))
        return 1
      end
    end
  end
end
