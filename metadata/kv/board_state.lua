-- Functions of the scripts of a board: its clock, and its life.
-- The state is a hash. life: when the board was made (us since 1970). since: when it was first
-- heard of without a longer break until now. heard: when it was heard of last. stamp: the greatest
-- stamp. version: the stamp of the last change of a counted record.
local function clock_us()
  local time = redis.call('TIME')
  return time[1] * 1000000 + time[2]
end
local now_us = clock_us()
local now_ms = math.floor(now_us / 1000)

local function exact(number)  -- tostring would keep 14 figures
  return string.format('%.0f', number)
end

-- Return {life, since, the us since then, now, version} as text.
local function state_of(key, longest_break_us)
  local found = redis.call('HMGET', key, 'life', 'since', 'heard', 'version')
  local life, since, heard = tonumber(found[1]), tonumber(found[2]), tonumber(found[3])
  if not (since and heard) or now_us < heard or now_us - heard > longest_break_us then
    since = now_us
  end
  local awake = exact(now_us - since)
  local version = exact(tonumber(found[4]) or 0)
  return {exact(life or now_us), exact(since), awake, exact(now_us), version}
end

-- Note that the board is heard of now; return the same.
local function hear(key, longest_break_us)
  local state = state_of(key, longest_break_us)
  local heard = tonumber(redis.call('HGET', key, 'heard'))
  if not heard or now_us < heard or now_us - heard > longest_break_us / 8 then
    redis.call('HSET', key, 'life', state[1], 'since', state[2], 'heard', exact(now_us))
  end
  return state
end

