-- The fence is empty while none is known; the ending is r release, n release and tell the next one first, R and N the same by a
-- holder that is sure of it, u undo, or s seal, which alone is kept for a time.
--
-- Before anybody has looked at the time: whoever is sure, and finds just its own grant, with nobody behind it. Should its lease have ended
-- while this was on its way, then nobody has had the name since, and the holder believed rightly until it let go.
if (ending == 'R' or ending == 'N') and state and #state > 75 then
  -- 49 is 1, 120 x.
  local version, letter, kept, last, since, _, _, holder = read('<BBdddddc32', state)
  -- The key lives on as the grant needed it, which is long enough for its fence; unless that is much longer.
  if version == 49 and letter == 120 and holder == claim and tonumber(fence) == last and kept * 1000000 - since <= 1860000000 then
    call('HSET', key, 's', write('<BBdd', 49, 105, kept, last))
    return 1
  end
end
