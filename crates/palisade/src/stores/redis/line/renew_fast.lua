-- The fence is empty while none is known.
--
-- The fast path: the one exclusive holder renews.
if state and #state > 75 then
  -- 49 is 1, 119 w, 120 x: bytes are cheaper to compare than texts. What is no number of ours compares as false.
  local version, letter, kept, last, since, began, span, holder = read('<BBdddddc32', state)
  if holder == claim and version == 49 and (letter == 120 or letter == 119)
    and (fence == '' or tonumber(fence) == last) and last % 1 == 0 and last >= 0 then
    local inbox_at = letter == 120 and 76 or 108
    if since <= now and now < since + span and kept * 1000000 >= now + span + 600000000
      and sub(state, inbox_at, inbox_at + #inbox - 1) == inbox then
      call('HSET', key, 's', write('<BBdddddc32c0', 49, letter, kept, last, now, began, span, claim, sub(state, 75)))
      return last
    end
  end
end
