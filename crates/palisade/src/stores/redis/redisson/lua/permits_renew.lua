-- Extends the leases of permits. ARGV[7]: how many.
if not ends_at(ME, tonumber(ARGV[7])) or not is_meant() then
  prune()
  return why_permits_gone()
end
return extend_permits(tonumber(ARGV[7]))
