-- `how` is q, f or n, kind, mode: whether it may stand in line, and f if it surely does not yet; `wanted` is lease, claim, kind and
-- meta, as a state has them of its holder; min_hold and once_per are only there where one is asked for.
local lease = read('<d', wanted)

-- The fast paths: a plain exclusive claim that finds the name free, or held by one exclusive holder.
-- 49 is 1, 105 i, 119 w, 120 x: bytes are cheaper to compare than texts. A name without a key is idle.
local version, letter, kept, last, since, began, span = 49, 105, 0, 0, 0, 0, 0
if state then
  if #state == 18 then
    version, letter, kept, last = read('<BBdd', state)
    if letter ~= 105 then version = 0 end
  elseif #state > 75 then
    version, letter, kept, last, since, began, span = read('<BBddddd', state)
    if letter ~= 120 and (letter ~= 119 or #state < 108) then version = 0 end
  else
    version = 0
  end
end
-- What is no number of ours compares as false.
if version == 49 and last % 1 == 0 and last >= 0 and last < 9007199254740991 and since <= now and (kept > 0 or not state)
  and (how == 'fmx' or how == 'qmx' or how == 'frx' or how == 'qrx' or how == 'nmx' or how == 'nrx') and not min_hold then
  local ends = since + span
  if ends <= now and letter ~= 119 then
    local fence = now
    if last >= now then fence = last + 1 end
    local spare = kept * 1000000 - now - lease - 600000000
    local stays = spare >= 0 and spare <= 1200000000
    if not stays then kept = math.ceil((now + lease) / 1000000) + 1200 end
    call('HSET', key, 's', write('<BBddddc0', 49, 120, kept, fence, now, now, wanted))
    if not stays then call('EXPIREAT', key, kept) end
    return fence
  end
  local holder, claim = ends > now and sub(state, 43, 74), sub(wanted, 9, 40)
  if holder and holder ~= claim then
    -- Whether all waiters are alive, or at least the first, so that this claim is not the first itself.
    local all_alive, first_alive = true, true
    local meta_at, sure, head, holes, count = 76, now, 0, 0, 0
    if letter == 119 then
      meta_at, sure, head, holes, count = 108, read('<dddd', state, 76)
      all_alive = now < sure and sure <= now + 5000000
      if not all_alive then
        local first = call('HGET', key, 'q' .. sub(state, 84, 91))
        local queued, wait = 0, 0
        if first and #first > 60 then queued, wait = read('<dxxxxxxxxd', first) end
        first_alive = queued <= now and now < queued + (wait < 5000000 and wait or 5000000)
      end
    end
    if first_alive then
      local theirs, ask_in, first = sub(state, meta_at), letter == 120 and ends - now or -1, sub(how, 1, 1)
      if first == 'n' then
        return write('<c1dddddc2c0', 'B', 0, ask_in, last, now - began, ends - now, 'x ', theirs)
      end
      local wait = lease
      if wait > 5000000 then wait = 5000000 end
      local lives = kept * 1000000
      local seq = head + holes + count
      if lives >= ends + 600000000 and lives >= now + 605000000 and seq % 1 == 0
        and (letter == 120 or first == 'f' or not call('HGET', key, 'c' .. claim)) then
        if letter == 120 or sure > now + wait then sure = now + wait end
        local kind = sub(how, 2, 2) == 'r' and 'r' or sub(state, 75, 75)
        seq = write('<d', seq)
        call('HSET', key, 's', write('<BBdddddc32c1ddddc0', 49, 119, kept, last, since, began, span, holder, kind,
          sure, head, holes, count + 1, theirs),
          'q' .. seq, write('<dddc32c4c0', now, now, lease, claim, 'x   ', sub(wanted, 42)), 'c' .. claim, seq)
        return write('<c1dd', 'Q', all_alive and count or -1, ask_in)
      end
    end
  end
end
local claim, meta = sub(wanted, 9, 40), sub(wanted, 42)
