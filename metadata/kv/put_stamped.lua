-- Put a record with a stamp of this server's clock that is greater than any before, or remove one.
-- KEYS: the hash of the records, the state.
-- ARGV: the field, the record up to its stamp ('': remove it) and after it, the most fields, how
-- far a stamp may be ahead of the clock (us), '1' if the change counts for the version.
-- Returns the stamp as text, '' if there was nothing to remove, or 0 if the hash is full.
local key, state, field, head = KEYS[1], KEYS[2], ARGV[1], ARGV[2]
local present = redis.call('HGET', key, field)
if head == '' and not present then
  return ''
end
if head ~= '' and not present and redis.call('HLEN', key) >= tonumber(ARGV[4]) then
  return 0
end
local stamp = now_us
local former = string.match(present or '', '"stamp":(%d+)}$')
local known = redis.call('HMGET', state, 'stamp', 'version')
for _, found in ipairs({former or '0', known[1] or '0', known[2] or '0'}) do
  local number = tonumber(found) or 0
  if number >= stamp and number <= now_us + tonumber(ARGV[5]) then
    stamp = number + 1
  end
end
if head == '' then
  redis.call('HDEL', key, field)
else
  redis.call('HSET', key, field, head .. exact(stamp) .. ARGV[3])
end
redis.call('HSETNX', state, 'life', exact(now_us))
redis.call('HSET', state, 'stamp', exact(stamp))
if ARGV[6] == '1' then
  redis.call('HSET', state, 'version', exact(stamp))
end
return exact(stamp)
