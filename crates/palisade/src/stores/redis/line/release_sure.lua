-- The fence is empty while none is known; the ending is r release, n release and tell the next one first, R and N the same by a
-- holder that is sure of it, u undo, or s seal, which alone is kept for a time.
--
-- 49 is 1, 105 i, 119 w, 120 x: bytes are cheaper to compare than texts. What is no number of ours compares as false.
local version, letter, kept, last, since, span, holder, _
if state and #state > 75 then version, letter, kept, last, since, _, span, holder = read('<BBdddddc32', state) end
local is_own = holder == claim and version == 49 and (fence == '' or tonumber(fence) == last)
local is_sure = ending == 'R' or ending == 'N'
-- Before anybody has looked at the time: whoever is sure, and finds just its own grant, with nobody behind it. Should its lease have ended
-- while this was on its way, then nobody has had the name since, and the holder believed rightly until it let go. The key lives on as
-- the grant needed it, which is long enough for its fence; unless that is much longer.
if is_own and is_sure and letter == 120 and kept * 1000000 - since <= 1860000000 then
  call('HSET', key, 's', write('<BBdd', 49, 105, kept, last))
  return 1
end
if is_sure then ending = ending == 'R' and 'r' or 'n' end
