-- One step of a scan of the leases of all groups that are valid by this server's clock.
-- KEYS: the leases (a hash), the ends of all (a sorted set, holder -> ms).
-- ARGV: cursor, about how many leases, and the most bytes of one.
local reply = redis.call('HSCAN', KEYS[1], ARGV[1], 'COUNT', ARGV[2])
local longest, found = tonumber(ARGV[3]), {}
for i = 1, #reply[2], 2 do
  local ends = redis.call('ZSCORE', KEYS[2], reply[2][i])
  local lease = reply[2][i + 1]
  if ends and tonumber(ends) > now_ms then
    found[#found + 1] = #lease <= longest and lease or ''
  end
end
return {reply[1], found}
