-- `how` is q or n, kind, mode: whether the claim may queue. `wanted` is lease, claim, kind and
-- meta, as a state has them of its holder; min_hold and once_per are only there where one is asked
-- for.
local lease = read('<d', wanted)
local CLAIM_AT, CLAIM_END, META_AT = 9, 40, 42

-- The fast paths: a plain exclusive claim finds the name free, or held by one exclusive holder. A
-- name without a key is idle.
local version, letter, kept, last, since, began, span = V1, IDLE, 0, 0, 0, 0, 0
if state then
  if #state == IDLE_SIZE then
    version, letter, kept, last = read('<BBdd', state)
    if letter ~= IDLE then version = 0 end
  elseif #state >= HELD_META then
    version, letter, kept, last, since, began, span = read('<BBddddd', state)
    if letter ~= HELD and (letter ~= QUEUED or #state < QUEUED_META) then version = 0 end
  else
    version = 0
  end
end
-- A number that is none of ours compares as false.
if version == V1 and last % 1 == 0 and last >= 0 and last < MAX_FENCE and since <= now and (kept > 0 or not state)
  and (how == 'qmx' or how == 'qrx' or how == 'nmx' or how == 'nrx') and not min_hold then
  local ends = since + span
  if ends <= now and letter ~= QUEUED then
    local fence = now
    if last >= now then fence = last + 1 end
    local spare = kept * SECOND - now - lease - KEEP_FENCE
    local stays = spare >= 0 and spare <= 2 * KEEP_SPARE
    if not stays then kept = math.ceil((now + lease + KEEP_FENCE + KEEP_SPARE) / SECOND) end
    -- HELD_LAYOUT: `wanted` has the parts from the lease on.
    call('HSET', key, 's', write('<BBddddc0', V1, HELD, kept, fence, now, now, wanted))
    if not stays then call('EXPIREAT', key, kept) end
    return fence
  end
  local holder, claim = ends > now and sub(state, HOLDER_AT, HOLDER_END), sub(wanted, CLAIM_AT, CLAIM_END)
  if holder and holder ~= claim then
    -- Whether all waiters are alive, or at least the first, so that this claim is not the first
    -- itself.
    local all_alive, first_alive = true, true
    local meta_at, alive_until, head, holes, count = HELD_META, now, 0, 0, 0
    if letter == QUEUED then
      meta_at, alive_until, head, holes, count = QUEUED_META, read('<dddd', state, QUEUE_AT)
      all_alive = now < alive_until and alive_until <= now + LONGEST_WAIT
      if not all_alive then
        local first = call('HGET', key, 'q' .. sub(state, HEAD_AT, HEAD_END))
        local queued, wait = 0, 0
        if first and #first >= PLAIN_META then queued, wait = read('<dxxxxxxxxd', first) end
        first_alive = queued <= now and now < queued + (wait < LONGEST_WAIT and wait or LONGEST_WAIT)
      end
    end
    if first_alive then
      local theirs, ask_in = sub(state, meta_at), letter == HELD and ends - now or -1
      if sub(how, 1, 1) == 'n' then
        return write('<c1dddddc2c0', 'B', 0, ask_in, last, now - began, ends - now, 'x ', theirs)
      end
      local wait = lease
      if wait > LONGEST_WAIT then wait = LONGEST_WAIT end
      local lives = kept * SECOND
      local seq = head + holes + count
      -- A claim that is sent again may be in line already: then the general path finds its place.
      if lives >= ends + KEEP_FENCE and lives >= now + LONGEST_WAIT + KEEP_FENCE and seq % 1 == 0
        and (letter == HELD or not call('HGET', key, 'c' .. claim)) then
        if letter == HELD or alive_until > now + wait then alive_until = now + wait end
        local kind = sub(how, 2, 2) == 'r' and 'r' or sub(state, KIND_AT, KIND_AT)
        seq = write('<d', seq)
        call('HSET', key, 's', write(QUEUED_LAYOUT, V1, QUEUED, kept, last, since, began, span, holder, kind,
          alive_until, head, holes, count + 1, theirs),
          'q' .. seq, write('<dddc32c4c0', now, now, lease, claim, PLAIN, sub(wanted, META_AT)), 'c' .. claim, seq)
        return write('<c1dd', 'Q', all_alive and count or -1, ask_in)
      end
    end
  end
end
local claim, meta = sub(wanted, CLAIM_AT, CLAIM_END), sub(wanted, META_AT)
