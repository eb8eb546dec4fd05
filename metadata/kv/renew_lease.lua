-- Renew one lease of a set, by this server's clock, and return all that are valid, as one step.
-- KEYS: the sorted set, entry -> end of its lease (ms).
-- ARGV: the holder's id, its entry (the id, a blank, anything), the lease (ms), the most entries to
-- return, and the most bytes of each.
-- Returns the entries found, including those under the same id that were replaced, and then the one
-- put.
local key, id, entry, lease = KEYS[1], ARGV[1], ARGV[2], tonumber(ARGV[3])
local most, longest = tonumber(ARGV[4]), tonumber(ARGV[5])
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
redis.call('ZREMRANGEBYSCORE', key, '-inf', now)
local prefix, told = id .. ' ', {}
for _, found in ipairs(redis.call('ZREVRANGE', key, 0, most - 1)) do
  if found ~= entry then
    if string.sub(found, 1, #prefix) == prefix then
      redis.call('ZREM', key, found)
    end
    if #found <= longest then
      told[#told + 1] = found
    end
  end
end
redis.call('ZADD', key, now + lease, entry)
redis.call('PEXPIRE', key, lease)
told[#told + 1] = entry
return told
