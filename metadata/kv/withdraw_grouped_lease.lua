-- Give up one holder's lease.
-- KEYS: the ends of the group's leases and those of all (sorted sets), the leases (a hash).
-- ARGV: the holder.
redis.call('ZREM', KEYS[1], ARGV[1])
redis.call('ZREM', KEYS[2], ARGV[1])
return redis.call('HDEL', KEYS[3], ARGV[1])
