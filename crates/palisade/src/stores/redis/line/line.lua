-- The general path: everything that the fast path of a verb does not handle. The rules are those of
-- crate::line.
--
-- Every stored time is in the past, with a span that counts from it: an end is `since + span`. So a
-- time in the future was written before the clock went back, and is clamped to now: no claim is kept
-- out for longer than the span that the holder asked for.
--
-- The parts of a holder, of a waiter, of a mark {since, span, fence}, of a seal {since, span,
-- claim}, of a tombstone {since, span, claim, why}. `since` is when the lease was last renewed;
-- after a hand-off it is earlier, so that the expiry is the one that the claim had as a waiter. A
-- ghost is a holder that has gone while its min_hold still keeps the name closed.
local SINCE, SPAN, CLAIM, MODE, PERMITS, META, BEGAN, MIN_HOLD = 1, 2, 3, 4, 5, 6, 7, 8
local FENCE, GHOST, MARK_BEFORE = 9, 10, 11
local ONCE_PER, SEQ = 9, 10
local BY, WHY, MARK_FENCE = 3, 4, 3
-- How many waiters before a claim are looked at when it renews; and how many fields one command
-- reads or deletes.
local MOST_LOOKED_AT, MOST_FIELDS = 64, 1000
-- The general form: where its list begins, and how many parts the list has.
local GENERAL_AT, GENERAL_PARTS = 11, 10

local match = string.match
local ttl, last, kind = 0, 0, ''
local holders, mark, seal, tombstones = {}, false, false, {}
-- The waiters are in the fields q<seq> from head on; `holes` of them are empty. None has expired
-- before `alive_until`.
local head, holes, count, alive_until = 0, 0, 0, 0

if state then
  if state.err then
    if string.find(state.err, 'WRONGTYPE', 1, true) then return { '?', 'type' } end
    return state
  end
  local form = sub(state, 1, 2)
  local garbage = { '?', 'garbage' }
  if form == '1i' then
    if #state ~= IDLE_SIZE then return garbage end
    ttl, last = read('<dd', state, BODY_AT)
  elseif form == '1x' or form == '1w' then
    local meta_at = form == '1x' and HELD_META or QUEUED_META
    if #state < meta_at then return garbage end
    local since, began, span, holder
    ttl, last, since, began, span, holder, kind = read('<dddddc32c1', state, BODY_AT)
    if form == '1w' then alive_until, head, holes, count = read('<dddd', state, QUEUE_AT) end
    -- A number that is none of ours has a fraction, or is not a number.
    if (since + began + span) % 1 ~= 0 then return garbage end
    holders[1] = { since, span, holder, 'x', 0, sub(state, meta_at), began, 0, last, false, false }
  elseif form == '1g' then
    if #state < GENERAL_AT then return garbage end
    ttl = read('<d', state, BODY_AT)
    local ok, general = pcall(cmsgpack.unpack, sub(state, GENERAL_AT))
    if not ok or type(general) ~= 'table' or #general ~= GENERAL_PARTS then return garbage end
    last, kind, alive_until, head, holes, count, holders, mark, seal, tombstones = unpack(general)
  else
    return { '?', match(form, '^[2-9]') and 'version' or 'garbage' }
  end
  if not (ttl and last and alive_until and head and holes and count) then return garbage end
  local sum = ttl + last + alive_until + head + holes + count
  if sum % 1 ~= 0 or sum > 4 * MAX_FENCE or math.min(ttl, last, alive_until, head, holes, count) < 0 then return garbage end
end

-- The fields of waiters that leave the line, until they are deleted at once.
local removed_fields = {}

local function delete_removed()
  for from = 1, #removed_fields, MOST_FIELDS do
    call('HDEL', key, unpack(removed_fields, from, math.min(from + MOST_FIELDS - 1, #removed_fields)))
  end
  removed_fields = {}
end

-- The text behind its own length at the beginning, and where it ends: the inbox of a meta.
local function inbox_of(meta)
  local length, at = match(meta, '^(%d+):()')
  return sub(meta, at, at + length - 1), at + length
end

-- Pushes to a claim, except the one that made the event, which has its reply.
local function tell(other, meta, news)
  -- A push that is lost is healed by the next renewal: its failure must not undo the step.
  if other ~= claim then redis.pcall('PUBLISH', (inbox_of(meta)), news) end
end

local function clamp_to_now(entry)
  if entry and entry[SINCE] > now then entry[SINCE] = now end
end

local function ends(entry)
  return entry[SINCE] + entry[SPAN]
end

local function occupies_until(holder)
  local keep = holder[MIN_HOLD] > 0 and holder[BEGAN] + holder[MIN_HOLD] or 0
  return not holder[GHOST] and ends(holder) > keep and ends(holder) or keep
end

local function keep_if(entries, wanted)
  local kept = {}
  for _, entry in ipairs(entries) do
    if wanted(entry) then kept[#kept + 1] = entry end
  end
  return kept
end

local function drop_ended_holders()
  holders = keep_if(holders, function(holder) return occupies_until(holder) > now end)
end

local function slot(seq)
  return 'q' .. write('<d', seq)
end

local function wait_lease(waiter)
  return waiter[SPAN] < LONGEST_WAIT and waiter[SPAN] or LONGEST_WAIT
end

local function write_waiter(waiter)
  local digits = function(number) return number > 0 and string.format('%.0f', number) or '' end
  call('HSET', key, slot(waiter[SEQ]), write('<dddc32', waiter[SINCE], waiter[BEGAN], waiter[SPAN], waiter[CLAIM])
    .. waiter[MODE] .. digits(waiter[PERMITS]) .. ' ' .. digits(waiter[MIN_HOLD]) .. ' ' .. digits(waiter[ONCE_PER]) .. ' '
    .. waiter[META])
end

local function read_waiter(record, seq)
  local mode, permits, min_hold, once_per, meta_at = match(record, '^(%a)(%d*) (%d*) (%d*) ()', MODE_AT)
  local since, began, span, id = read('<dddc32', record)
  local waiter = { since, span, id, mode, tonumber(permits) or 0, sub(record, meta_at), began, tonumber(min_hold) or 0,
    tonumber(once_per) or 0, seq }
  local lies_ahead = waiter[SINCE] > now
  if lies_ahead then waiter[SINCE] = now end
  if waiter[BEGAN] > now then waiter[BEGAN] = now end
  return waiter, lies_ahead
end

-- Reads a waiter. If the clock went back, its time begins to run now.
local function meet_waiter(record, seq)
  local waiter, lies_ahead = read_waiter(record, seq)
  if lies_ahead then write_waiter(waiter) end
  return waiter
end

local function is_alive(waiter)
  return now < waiter[SINCE] + wait_lease(waiter)
end

local function remove_waiter(waiter)
  removed_fields[#removed_fields + 1] = slot(waiter[SEQ])
  removed_fields[#removed_fields + 1] = 'c' .. waiter[CLAIM]
  count = count - 1
  if waiter[SEQ] == head then head = head + 1 else holes = holes + 1 end
  if count == 0 then head, holes = head + holes, 0 end
end

-- The first in line. The dead before it are dropped, and so are the empty slots.
local first_known = false
local function first()
  if first_known and first_known[SEQ] == head then return first_known end
  while count > 0 do
    local record = call('HGET', key, slot(head))
    if record then
      first_known = meet_waiter(record, head)
      if is_alive(first_known) then return first_known end
      remove_waiter(first_known)
    elseif holes > 0 then
      head, holes = head + 1, holes - 1
    else
      -- Another program deleted fields of ours: those waiters are gone.
      count = 0
    end
  end
  first_known = false
end

local function limit()
  return tonumber(sub(kind, 2)) or 0
end

local function permits_out()
  local out = 0
  for _, holder in ipairs(holders) do out = out + holder[PERMITS] end
  return out
end

local function admits(mode, permits)
  if #holders == 0 then return true end
  if mode == 'x' then return false end
  if mode == 'p' then return permits_out() + permits <= limit() end
  for _, holder in ipairs(holders) do
    if holder[MODE] ~= 's' then return false end
  end
  return true
end

local function too_soon_by(once_per)
  if mark and once_per > 0 then
    local left = mark[SINCE] + math.min(once_per, mark[SPAN]) - now
    return left > 0 and left
  end
end

local function add_tombstone(entry, span, why)
  tombstones[#tombstones + 1] = { entry[SINCE], span, entry[CLAIM], why }
  tell(entry[CLAIM], entry[META], why .. entry[CLAIM])
end

-- Grants to a claim, whose lease has `since` and `span`.
local function grant(since, entry, once_per)
  last = math.max(last + 1, now)
  local before = false
  if once_per > 0 then
    before, mark = mark, { now, once_per, last }
  end
  holders[#holders + 1] = { since, entry[SPAN], entry[CLAIM], entry[MODE], entry[PERMITS], entry[META], now, entry[MIN_HOLD],
    last, false, before }
end

local function hand_off()
  while last < MAX_FENCE do
    local waiter = first()
    if not waiter or not admits(waiter[MODE], waiter[PERMITS]) then break end
    remove_waiter(waiter)
    if too_soon_by(waiter[ONCE_PER]) then
      add_tombstone(waiter, wait_lease(waiter), 'o')
    else
      grant(waiter[SINCE] + wait_lease(waiter) - waiter[SPAN], waiter, waiter[ONCE_PER])
      tell(waiter[CLAIM], waiter[META], 'g' .. waiter[CLAIM] .. write('<d', last))
    end
  end
  if #holders == 0 and count == 0 then kind = '' end
end

-- Ends everything that has expired; of the waiters only those at the head.
local function expire()
  local is_left = function(entry) return ends(entry) > now end
  for _, holder in ipairs(holders) do
    clamp_to_now(holder)
    clamp_to_now(holder[MARK_BEFORE])
    if holder[BEGAN] > now then holder[BEGAN] = now end
    if ends(holder) <= now then holder[GHOST] = true end
  end
  drop_ended_holders()
  clamp_to_now(mark)
  if mark and not is_left(mark) then mark = false end
  clamp_to_now(seal)
  if seal and not is_left(seal) then seal = false end
  for _, tombstone in ipairs(tombstones) do clamp_to_now(tombstone) end
  tombstones = keep_if(tombstones, is_left)
  hand_off()
end

local function live_holder(fence)
  for _, holder in ipairs(holders) do
    if holder[CLAIM] == claim and not holder[GHOST] and (not fence or holder[FENCE] == fence) then return holder end
  end
end

-- The claim that made the event, if it waits. A claim with a fence does not wait.
local function own_waiter(fence)
  local seq = not fence and count > 0 and call('HGET', key, 'c' .. claim)
  seq = seq and #seq == 8 and read('<d', seq)
  -- One before the head left the line in this very event.
  if not seq or seq < head then return end
  local record = call('HGET', key, slot(seq))
  if not record then return end
  local waiter = meet_waiter(record, seq)
  if is_alive(waiter) then return waiter end
  remove_waiter(waiter)
end

-- The reply to a claim that is turned away: why (1 too soon, 2 holders or ghosts), in how long to
-- ask, and the first holder that is no ghost. One text: a list would cost more, here and where it is
-- read.
local function busy(number, ask_in)
  for _, holder in ipairs(holders) do
    if not holder[GHOST] then
      local permits = holder[PERMITS] > 0 and holder[PERMITS] or ''
      return write('<c1ddddd', 'B', number, ask_in, holder[FENCE], now - holder[BEGAN], ends(holder) - now)
        .. holder[MODE] .. permits .. ' ' .. holder[META]
    end
  end
  return write('<c1dd', 'B', number, ask_in)
end

-- When the holders alone would let a claim in.
local function admitted_at(mode, permits)
  if admits(mode, permits) then return now end
  local until_then = {}
  for at, holder in ipairs(holders) do until_then[at] = { occupies_until(holder), holder[PERMITS] } end
  table.sort(until_then, function(a, b) return a[1] < b[1] end)
  if mode ~= 'p' then return until_then[#until_then][1] end
  local free = limit() - permits_out()
  for _, holder in ipairs(until_then) do
    free = free + holder[2]
    if free >= permits then return holder[1] end
  end
end

-- The reply with the place of a waiter that has just come or renewed: how many are ahead, and in
-- how long to ask.
local function place(waiter, look_ahead)
  local ahead, clear = -1, false
  local slots = waiter[SEQ] - head
  if slots == 0 then
    ahead, clear = 0, now
  elseif look_ahead and slots <= MOST_LOOKED_AT then
    local fields = {}
    for seq = head, waiter[SEQ] - 1 do fields[#fields + 1] = slot(seq) end
    ahead, clear = 0, now
    for at, record in ipairs(call('HMGET', key, unpack(fields))) do
      if record then
        local other = meet_waiter(record, head + at - 1)
        if is_alive(other) then
          ahead, clear = ahead + 1, math.max(clear, other[SINCE] + wait_lease(other))
        end
      end
    end
  elseif now < alive_until and alive_until <= now + LONGEST_WAIT and (holes == 0 or waiter[SEQ] == head + holes + count - 1) then
    -- All are alive: the number of waiters ahead is known without reading them.
    ahead = holes == 0 and slots or count - 1
  end
  local way = clear and admitted_at(waiter[MODE], waiter[PERMITS])
  return write('<c1dd', 'Q', ahead, way and math.max(way, clear) - now or -1)
end

-- Renews the claim that made the event: its fence, its place, or nothing when it is gone.
local function renew_claim(fence, inbox)
  local function reached_by(meta)
    local _, rest = inbox_of(meta)
    return inbox .. sub(meta, rest)
  end
  local holder = live_holder(fence)
  if holder then
    holder[SINCE] = now
    if inbox then holder[META] = reached_by(holder[META]) end
    return holder[FENCE]
  end
  local waiter = own_waiter(fence)
  if waiter then
    waiter[SINCE] = now
    if inbox then waiter[META] = reached_by(waiter[META]) end
    write_waiter(waiter)
    if waiter[SEQ] == head then first_known = waiter end
    return place(waiter, true)
  end
end

-- Why a claim neither holds nor waits, as far as is known.
local function why_gone(fence)
  for _, tombstone in ipairs(tombstones) do
    if tombstone[BY] == claim then return tombstone[WHY] end
  end
  for _, holder in ipairs(holders) do
    if holder[CLAIM] ~= claim then return 't' end
  end
  return fence and fence <= last and 'n' or 'u'
end

-- Writes down all changes, and lets the key live as long as it is needed: it goes by itself
-- afterwards.
local function save()
  delete_removed()
  local needed = count > 0 and now + LONGEST_WAIT or now
  for _, holder in ipairs(holders) do needed = math.max(needed, occupies_until(holder)) end
  for _, tombstone in ipairs(tombstones) do needed = math.max(needed, ends(tombstone)) end
  if mark then needed = math.max(needed, ends(mark)) end
  if seal then needed = math.max(needed, ends(seal)) end
  local spare = ttl * SECOND - needed - KEEP_FENCE
  local stays = spare >= 0 and spare <= KEEP_SPARE * 2
  if not stays then ttl = math.ceil((needed + KEEP_FENCE + KEEP_SPARE) / SECOND) end

  local text
  local holder, plain = holders[1], not mark and not seal and #tombstones == 0
  if plain and not holder and count == 0 then
    text = write(IDLE_LAYOUT, V1, IDLE, ttl, last)
  elseif plain and #holders == 1 and holder[MODE] == 'x' and not holder[GHOST] and holder[FENCE] == last
    and holder[MIN_HOLD] == 0 and not holder[MARK_BEFORE] then
    local since, began, span, id, meta = holder[SINCE], holder[BEGAN], holder[SPAN], holder[CLAIM], holder[META]
    if count == 0 then
      text = write(HELD_LAYOUT, V1, HELD, ttl, last, since, began, span, id, kind, meta)
    else
      text = write(QUEUED_LAYOUT, V1, QUEUED, ttl, last, since, began, span, id, kind, alive_until, head, holes, count, meta)
    end
  else
    if count == 0 then head, holes, alive_until = 0, 0, 0 end
    text = '1g' .. write('<d', ttl)
      .. cmsgpack.pack({ last, kind, alive_until, head, holes, count, holders, mark, seal, tombstones })
  end
  if text ~= state then call('HSET', key, 's', text) end
  if not stays then call('EXPIREAT', key, ttl) end
end
