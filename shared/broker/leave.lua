-- A worker that holds nothing leaves a queue. KEYS 1 leases 2.. lanes. ARGV 1 group 2 consumer. Returns entries still held.
lift_oom(KEYS[1])
local held = 0
for k = 2, #KEYS do
  local pending = redis.pcall('XPENDING', KEYS[k], ARGV[1], '-', '+', 1, ARGV[2])
  if pending.err then pending = {} end
  held = held + #pending
end
if held == 0 then
  for k = 2, #KEYS do redis.pcall('XGROUP', 'DELCONSUMER', KEYS[k], ARGV[1], ARGV[2]) end
  redis.call('ZREM', KEYS[1], ARGV[2])
else
  redis.call('ZADD', KEYS[1], 'XX', 0, ARGV[2])  -- the next tick hands them on
end
return held
