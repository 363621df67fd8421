expire()
local queues, asked, mode, permits = match(how, '^([qn])(%a%d*) ?(%a)(%d*)$')
local function answer()
  -- The mode does not fit the kind.
  if not mode then return { 'M' } end
  if kind ~= '' and kind ~= asked and (sub(kind, 1, 1) == 's' or sub(asked, 1, 1) == 's') then return { 'K', kind } end
  local _, inbox_end = inbox_of(meta)
  local known = stand(nil, sub(meta, 1, inbox_end - 1))
  if known then return known end
  if seal then return { 'S' } end
  permits = tonumber(permits) or 0
  local min_hold, once_per = tonumber(min_hold) or 0, tonumber(once_per) or 0
  local left = too_soon_by(once_per)
  if left then return busy(1, left) end
  local free = count == 0 and admits(mode, permits)
  if not free and queues == 'n' then
    local way = count == 0 and way_is_clear(mode, permits)
    return busy(0, way and way - now or -1)
  end
  if last >= MAX_FENCE then return { 'F' } end
  -- A mutex is the write side of a rwlock: once a rwlock claim has joined, that is what the name serves as.
  if kind ~= 'r' then kind = asked end
  tombstones = keep_if(tombstones, function(tombstone) return tombstone[BY] ~= claim end)
  local entry = { now, lease, claim, mode, permits, meta, now, min_hold, once_per, head + holes + count }
  if free then
    grant(now, entry, once_per)
    return last
  end
  local dies = now + wait_lease(entry)
  sure = count == 0 and dies or math.min(sure, dies)
  count = count + 1
  -- First the fields of an earlier life under this id.
  sweep()
  write_waiter(entry)
  call('HSET', key, 'c' .. claim, write('<d', entry[SEQ]))
  return place(entry, false)
end
local said = answer()
hand_off()
save()
return said
