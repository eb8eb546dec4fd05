-- Lead for a time by this server's clock, or renew that, unless another one leads.
-- KEYS: the leader (a hash that expires), the state.
-- ARGV: the id, how long it leads (ms), the longest break (us). Returns the leader's id.
hear(KEYS[2], tonumber(ARGV[3]))
local leader = redis.call('HGET', KEYS[1], 'id')
if leader and leader ~= ARGV[1] and redis.call('PTTL', KEYS[1]) > 0 then
  return leader
end
redis.call('HSET', KEYS[1], 'id', ARGV[1])
redis.call('PEXPIRE', KEYS[1], ARGV[2])
return ARGV[1]
