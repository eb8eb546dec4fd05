-- Put one entry of a set under a lease, by this server's clock, in place of its holder's former one.
-- KEYS: the sorted set, entry -> end of its lease (ms).
-- ARGV: the holder's former entry or '', its entry, the lease (ms), the most entries of the set.
-- Returns 1, 2 if the former entry was not there any more, or 0 if the set is full.
local key, former, entry = KEYS[1], ARGV[1], ARGV[2]
local lease, most = tonumber(ARGV[3]), tonumber(ARGV[4])
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
redis.call('ZREMRANGEBYSCORE', key, '-inf', now)
local answer = 1
if former ~= '' and not redis.call('ZSCORE', key, former) then
  answer = 2
end
if former ~= '' and former ~= entry then
  redis.call('ZREM', key, former)
end
if redis.call('ZCARD', key) >= most and not redis.call('ZSCORE', key, entry) then
  return 0
end
redis.call('ZADD', key, now + lease, entry)
if redis.call('PTTL', key) < lease then
  redis.call('PEXPIRE', key, lease)
end
return answer
