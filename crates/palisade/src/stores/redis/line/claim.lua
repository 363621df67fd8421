-- Claims a name: granted, queued or refused, in one step.
expire()
local queues, asked, mode, permits = match(how, '^([qn])(%a%d*) ?(%a)(%d*)$')
local function answer()
  -- The mode does not fit the kind.
  if not mode then return { 'M' } end
  if kind ~= '' and kind ~= asked and (sub(kind, 1, 1) == 's' or sub(asked, 1, 1) == 's') then return { 'K', kind } end
  local _, inbox_end = inbox_of(meta)
  local known = renew_claim(nil, sub(meta, 1, inbox_end - 1))
  if known then return known end
  if seal then return { 'S' } end
  permits = tonumber(permits) or 0
  local min_hold, once_per = tonumber(min_hold) or 0, tonumber(once_per) or 0
  local left = too_soon_by(once_per)
  if left then return busy(1, left) end
  local free = count == 0 and admits(mode, permits)
  if not free and queues == 'n' then
    local way = count == 0 and admitted_at(mode, permits)
    return busy(admits(mode, permits) and 0 or 2, way and way - now or -1)
  end
  if last >= MAX_FENCE then return { 'F' } end
  -- A mutex is the write side of a rwlock: once a rwlock claim has joined, the name is a rwlock.
  if kind ~= 'r' then kind = asked end
  tombstones = keep_if(tombstones, function(tombstone) return tombstone[BY] ~= claim end)
  local entry = { now, lease, claim, mode, permits, meta, now, min_hold, once_per, head + holes + count }
  if free then
    grant(now, entry, once_per)
    return last
  end
  local dies = now + wait_lease(entry)
  alive_until = count == 0 and dies or math.min(alive_until, dies)
  count = count + 1
  -- First the fields of an earlier life under this id.
  delete_removed()
  write_waiter(entry)
  call('HSET', key, 'c' .. claim, write('<d', entry[SEQ]))
  return place(entry, false)
end
local reply = answer()
hand_off()
save()
return reply
