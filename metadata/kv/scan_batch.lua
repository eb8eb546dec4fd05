-- One step of a scan, with the identity of the server process: a cursor means nothing to another one.
-- KEYS: the hash. ARGV: cursor, about how many fields.
local reply = redis.call('HSCAN', KEYS[1], ARGV[1], 'COUNT', ARGV[2])
local run_id = string.match(redis.call('INFO', 'server'), 'run_id:(%w+)')
return {run_id, reply[1], reply[2]}
