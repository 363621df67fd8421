-- Leaves expired claims out, but writes nothing and hands nothing off: a fence that is shown was
-- really granted.
local holding, waiting = {}, {}
for _, holder in ipairs(holders) do
  clamp_to_now(holder)
  if holder[BEGAN] > now then holder[BEGAN] = now end
  if occupies_until(holder) > now then
    local left = holder[GHOST] and 0 or math.max(ends(holder) - now, 0)
    holding[#holding + 1] = { holder[FENCE], holder[MODE] .. (holder[PERMITS] > 0 and holder[PERMITS] or ''),
      now - holder[BEGAN], left, holder[META] }
  end
end
local over = head + holes + count
while count > 0 and head < over do
  local fields = {}
  for seq = head, math.min(head + MOST_FIELDS - 1, over - 1) do fields[#fields + 1] = slot(seq) end
  for at, record in ipairs(call('HMGET', key, unpack(fields))) do
    local waiter = record and read_waiter(record, head + at - 1)
    if waiter and is_alive(waiter) then
      waiting[#waiting + 1] = { waiter[MODE] .. (waiter[PERMITS] > 0 and waiter[PERMITS] or ''), now - waiter[BEGAN], waiter[META] }
    end
  end
  head = head + #fields
end
-- The time that the marks still run, in microseconds; -1 for none.
local closed, ran, due, done = -1, -1, -1, -1
for _, holder in ipairs(holders) do
  local left = holder[BEGAN] + holder[MIN_HOLD] - now
  if holder[MIN_HOLD] > 0 and left > closed and left > 0 then closed = left end
end
clamp_to_now(mark)
if mark and ends(mark) > now then ran, due = now - mark[SINCE], ends(mark) - now end
clamp_to_now(seal)
if seal and ends(seal) > now then done = ends(seal) - now end
return { kind == '' and 'm' or kind, holding, waiting, { closed, ran, due, done } }
