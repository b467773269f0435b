-- A gateway asks for the truth about its requests. ARGV 1 record prefix 2 payload prefix, then ids.
-- Returns a pair a request: state (GONE without a record), answer (empty while there is none).
local out = {}
for i = 3, #ARGV do
  local st = redis.call('HGET', ARGV[1] .. ARGV[i], 'st')
  out[#out + 1] = st or 'GONE'
  out[#out + 1] = st and terminal(st) and redis.call('GET', ARGV[2] .. ARGV[i]) or ''
end
return out
