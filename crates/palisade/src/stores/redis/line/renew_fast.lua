-- The fence is empty while none is known.
--
-- The fast path: the one exclusive holder renews. A number that is none of ours compares as false.
if state and #state >= HELD_META then
  local version, letter, kept, last, since, began, span, holder = read('<BBdddddc32', state)
  if holder == claim and version == V1 and (letter == HELD or letter == QUEUED)
    and (fence == '' or tonumber(fence) == last) and last % 1 == 0 and last >= 0 then
    local inbox_at = letter == HELD and HELD_META or QUEUED_META
    if since <= now and now < since + span and kept * SECOND >= now + span + KEEP_FENCE
      and sub(state, inbox_at, inbox_at + #inbox - 1) == inbox then
      call('HSET', key, 's', write('<BBdddddc32c0', V1, letter, kept, last, now, began, span, claim, sub(state, KIND_AT)))
      return last
    end
  end
end
