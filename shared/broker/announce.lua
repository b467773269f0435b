-- A worker enters itself in the fleet's directory. KEYS 1 workers 2 leases 3 version
-- ARGV 1 worker 2 lease us (0 = leave) 3 descriptor
lift_oom(KEYS[2])
if ARGV[2] == '0' then
  redis.call('ZREM', KEYS[2], ARGV[1])
  if redis.call('HDEL', KEYS[1], ARGV[1]) == 1 then redis.call('SET', KEYS[3], int(now_us())) end
  return 0
end
redis.call('ZADD', KEYS[2], int(now_us() + tonumber(ARGV[2])), ARGV[1])
if redis.call('HGET', KEYS[1], ARGV[1]) ~= ARGV[3] then
  redis.call('HSET', KEYS[1], ARGV[1], ARGV[3])
  redis.call('SET', KEYS[3], int(now_us()))
end
return 1
