-- Expired claims are left out, but nothing is written and nothing is handed off: a fence that is shown was really granted.
local holding, waiting = {}, {}
for _, holder in ipairs(holders) do
  down_to_now(holder)
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
return { kind == '' and 'm' or kind, holding, waiting }
