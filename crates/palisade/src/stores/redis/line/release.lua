-- Takes back the closed period and the once-per mark of the claim's latest grant.
local function undo(fence)
  for at = #holders, 1, -1 do
    local undone = holders[at]
    if undone[GHOST] and undone[CLAIM] == claim and (not fence or undone[FENCE] == fence) then
      table.remove(holders, at)
      local before = undone[MARK_BEFORE]
      if mark and mark[MARK_FENCE] == undone[FENCE] then
        mark = before and ends(before) > now and before
      end
      -- A later holder must not bring the mark back by its own undo.
      for _, later in ipairs(holders) do
        if later[MARK_BEFORE] and later[MARK_BEFORE][MARK_FENCE] == undone[FENCE] then later[MARK_BEFORE] = before end
      end
      return
    end
  end
end

-- Closes the line for a span, and turns all waiters away.
local function close(span)
  -- Of two seals the longer one counts: neither may be broken by the other.
  if not seal or ends(seal) < now + span then seal = { now, span, claim } end
  local waiter = first()
  while waiter do
    remove_waiter(waiter)
    add_tombstone(waiter, wait_lease(waiter), 's')
    waiter = first()
  end
end

local function finish(fence, ending)
  local holder = live_holder(fence)
  if holder then
    holder[GHOST] = true
    if ending == 'u' then undo(fence) end
    if ending == 's' then close(tonumber(keep)) end
    drop_ended_holders()
    return 1
  end
  local waiter = own_waiter(fence)
  if waiter then
    remove_waiter(waiter)
    return 1
  end
  if ending == 'u' then undo(fence) end
  -- The reply to this very seal was lost, and it is sent again.
  return ending == 's' and seal and seal[BY] == claim and 1 or 0
end

expire()
local reply = finish(tonumber(fence), ending)
hand_off()
save()
return reply
