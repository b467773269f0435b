-- A gateway asks for the truth about its requests. KEYS 1 deadlines. ARGV 1 T, then ids.
-- Returns a pair a request: state (GONE without a record), answer (empty while there is none).
local out = {}
for i = 2, #ARGV do
  local st = redis.call('HGET', ARGV[1] .. ':r:' .. ARGV[i], 'st')
  out[#out + 1] = st or 'GONE'
  out[#out + 1] = st and terminal(st) and redis.call('GET', ARGV[1] .. ':p:' .. ARGV[i]) or ''
end
return out
