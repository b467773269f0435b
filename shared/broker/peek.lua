-- A gateway asks for the truth about its requests. ARGV 1 record prefix, then ids.
-- Returns a pair a request: state (GONE without a record), answer (empty while there is none).
local out = {}
for i = 2, #ARGV do
  local h = redis.call('HMGET', ARGV[1] .. ARGV[i], 'st', 'res')
  out[#out + 1] = h[1] or 'GONE'
  out[#out + 1] = h[2] or ''
end
return out
