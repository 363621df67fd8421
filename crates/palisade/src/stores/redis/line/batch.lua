-- ARGV[1]: for each key two bytes, its verb and how many arguments it has. Then all arguments.
local CLAIM, RELEASE = 99, 114 -- c, r
local KEYS, ARGV = KEYS, ARGV
local verbs, byte = ARGV[1], string.byte
local answers, done, word = {}, 0, 1

local function go_on()
  for item = done + 1, #KEYS do
    -- First, so that the loop goes on behind a call that fails.
    done = item
    local key, verb, words = KEYS[item], byte(verbs, 2 * item - 1, 2 * item)
    local at = word
    word = word + words
    if verb == CLAIM then
      answers[item] = claim(key, ARGV[at + 1], ARGV[at + 2], words > 2 and ARGV[at + 3], words > 3 and ARGV[at + 4]) or false
    elseif verb == RELEASE then
      answers[item] = release(key, ARGV[at + 1], ARGV[at + 2], ARGV[at + 3], words > 3 and ARGV[at + 4]) or false
    else
      error('no such verb')
    end
  end
end

-- A call that fails does not fail the others: each gets the reply that it would have got alone.
repeat
  local ok, why = pcall(go_on)
  if not ok then
    why = tostring(type(why) == 'table' and why.err or why)
    answers[done] = { err = string.find(why, '^%u+ ') and why or 'ERR ' .. why }
  end
until done == #KEYS
return answers
