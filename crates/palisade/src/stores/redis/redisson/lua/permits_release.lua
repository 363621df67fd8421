-- Gives permits back. ARGV[7]: how many.
local COUNT = tonumber(ARGV[7])
if not ends_at(ME, COUNT) or not is_meant() then
  prune()
  return 0
end
end_permits(ME, COUNT)
return 1
