-- A worker that holds nothing leaves a queue. KEYS 1 leases. ARGV 1 T 2 consumer. Returns entries still held.
lift_oom(KEYS[1])
local T, consumer, held = ARGV[1], ARGV[2], 0
for k = 0, SUSPECTS do
  local pending = redis.pcall('XPENDING', T .. ':q:' .. k, GROUP, '-', '+', 1, consumer)
  held = held + (pending.err and 0 or #pending)
end
if held == 0 then
  for k = 0, SUSPECTS do redis.pcall('XGROUP', 'DELCONSUMER', T .. ':q:' .. k, GROUP, consumer) end
  redis.call('ZREM', KEYS[1], consumer)
  redis.call('HDEL', T .. ':run', consumer)
else
  redis.call('ZADD', KEYS[1], 'XX', 0, consumer)  -- the next tick hands them on
end
if redis.call('GET', T .. ':solo') == consumer then redis.call('DEL', T .. ':solo') end
redis.call('HDEL', T .. ':pace', consumer)
return held
