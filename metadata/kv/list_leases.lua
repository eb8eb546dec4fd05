-- Return all leases of a set that are valid by this server's clock. Changes nothing.
-- KEYS: the sorted set, entry -> end of its lease (ms).
-- ARGV: the most entries to return, and the most bytes of each.
local most, longest = tonumber(ARGV[1]), tonumber(ARGV[2])
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local told = {}
for _, found in ipairs(redis.call('ZREVRANGEBYSCORE', KEYS[1], '+inf', '(' .. now, 'LIMIT', 0, most)) do
  if #found <= longest then
    told[#told + 1] = found
  end
end
return told
