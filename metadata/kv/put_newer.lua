-- Put the values whose stamps are greater than those present, all of one hash, as one step.
-- KEYS: the hash.
-- ARGV: the number of fields from which the hash is split (0: never), the split marker, n fields,
-- n values.
-- Returns the positions (from 0) of the fields that belong into buckets, because the hash is split
-- and does not hold them.
local key, limit, n = KEYS[1], tonumber(ARGV[1]), (#ARGV - 2) / 2
local present = redis.call('HMGET', key, unpack(ARGV, 2, n + 2))  -- the marker, then the fields
local is_split = limit > 0 and present[1]
if limit > 0 and not is_split and redis.call('HLEN', key) >= limit then
  redis.call('HSET', key, ARGV[2], '')
  is_split = true
end
local unpack_stamp = struct.unpack
local pairs_to_set, count, elsewhere = {}, 0, {}
for i = 1, n do
  local old, new, wins = present[i + 1], ARGV[n + 2 + i], true
  if old and #old >= 16 then  -- a shorter one is damaged, and older than any
    -- As numbers, because Lua compares strings by locale; exact below 2^53.
    local old_high, old_low = unpack_stamp('>I8I8', old)
    local new_high, new_low = unpack_stamp('>I8I8', new)
    wins = new_high > old_high or (new_high == old_high and new_low > old_low)
  elseif is_split and not old then
    elsewhere[#elsewhere + 1] = i - 1
    wins = false
  end
  if wins then
    pairs_to_set[count + 1], pairs_to_set[count + 2] = ARGV[i + 2], new
    count = count + 2
  end
end
if count > 0 then
  redis.call('HSET', key, unpack(pairs_to_set, 1, count))
end
return elsewhere
