-- Renew one holder's lease by this server's clock; return the leases of its group, and some fields.
-- KEYS: the ends of the group's leases and those of all (sorted sets, holder -> ms), the leases (a
-- hash), the state, the hash of the fields, another hash.
-- ARGV: the holder, its lease, how long it lasts (ms), the most leases of a group and of all, the
-- longest break (us), '1' to return the leases, the most bytes of one, and the fields.
-- Returns {state, whether one of the two hashes has any field, the fields, the leases}, or 0 if the
-- group has no room, or -1 if there is none at all.
local group, all, leases = KEYS[1], KEYS[2], KEYS[3]
local holder, lasts, longest = ARGV[1], tonumber(ARGV[3]), tonumber(ARGV[8])

local expired = redis.call('ZRANGEBYSCORE', all, '-inf', now_ms, 'LIMIT', 0, 1000)
if #expired > 0 then
  redis.call('ZREM', all, unpack(expired))
  redis.call('HDEL', leases, unpack(expired))
end
redis.call('ZREMRANGEBYSCORE', group, '-inf', now_ms)
if not redis.call('ZSCORE', group, holder) and redis.call('ZCARD', group) >= tonumber(ARGV[4]) then
  return 0
end
if not redis.call('ZSCORE', all, holder) and redis.call('ZCARD', all) >= tonumber(ARGV[5]) then
  return -1
end
redis.call('HSET', leases, holder, ARGV[2])
for _, key in ipairs({group, all}) do
  redis.call('ZADD', key, now_ms + lasts, holder)
end
for _, key in ipairs({group, all, leases}) do
  if redis.call('PTTL', key) < lasts then
    redis.call('PEXPIRE', key, lasts)
  end
end

local found = {}
if ARGV[7] == '1' then
  local holders = redis.call('ZREVRANGE', group, 0, ARGV[4] - 1)
  for i, lease in ipairs(redis.call('HMGET', leases, unpack(holders))) do
    if lease then
      found[#found + 1] = #lease <= longest and lease or ''
    end
  end
end
local has_any = redis.call('HLEN', KEYS[5]) + redis.call('HLEN', KEYS[6]) > 0
local fields = redis.call('HMGET', KEYS[5], unpack(ARGV, 9))
return {hear(KEYS[4], tonumber(ARGV[6])), has_any and 1 or 0, fields, found}
