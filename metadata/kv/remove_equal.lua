-- Remove the fields of one hash whose values are still those given, as one step.
-- KEYS: the hash. ARGV: n fields, n values. Returns the number removed.
local key, n = KEYS[1], #ARGV / 2
if n == 0 then
  return 0
end
local present = redis.call('HMGET', key, unpack(ARGV, 1, n))
local gone = {}
for i = 1, n do
  if present[i] == ARGV[n + i] then
    gone[#gone + 1] = ARGV[i]
  end
end
if #gone == 0 then
  return 0
end
return redis.call('HDEL', key, unpack(gone))
