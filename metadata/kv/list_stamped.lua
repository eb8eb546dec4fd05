-- Return the state, and the records of some hashes. Changes nothing.
-- KEYS: the state, the hashes. ARGV: the longest break (us), and the most bytes of a record.
local answer = {state_of(KEYS[1], tonumber(ARGV[1]))}
for i = 2, #KEYS do
  local records = redis.call('HVALS', KEYS[i])
  for j, record in ipairs(records) do
    if #record > tonumber(ARGV[2]) then
      records[j] = ''
    end
  end
  answer[i] = records
end
return answer
