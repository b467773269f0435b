-- A worker proves that it lives, and asks which of its requests are still its own.
-- KEYS  1 leases
-- ARGV  1 consumer  2 lease us  3 record prefix, then 2 a request: id, attempt
-- Returns LIVE or LOST (the lease had been given up: the work was handed on), then the ids that are not its own now.
local consumer, prefix = ARGV[1], ARGV[3]
lift_oom(KEYS[1])
local out = {redis.call('ZSCORE', KEYS[1], consumer) and 'LIVE' or 'LOST'}
redis.call('ZADD', KEYS[1], int(now_us() + tonumber(ARGV[2])), consumer)
for i = 4, #ARGV, 2 do
  local h = redis.call('HMGET', prefix .. ARGV[i], 'st', 'a', 'own')
  if h[1] ~= 'RUNNING' or h[2] ~= ARGV[i + 1] or h[3] ~= consumer then out[#out + 1] = ARGV[i] end
end
return out
