-- A gateway asks who is there. KEYS 1 workers 2 leases 3 version 4 unloaded models 5 last survey
-- ARGV 1 the version it knows 2 grace us
-- Returns {version} when nothing moved, else {version, {unloaded models}, {worker, descriptor, ...}}. Drops workers whose lease ran out.
lift_oom(KEYS[2])
local t, last = now_us(), tonumber(redis.call('GET', KEYS[5]) or '0')
redis.call('SET', KEYS[5], int(t), 'PX', 86400000)
if last > 0 and t - last > tonumber(ARGV[2]) then  -- Redis stood still, or nobody looked: nobody is dead for that
  for _, w in ipairs(redis.call('ZRANGE', KEYS[2], 0, -1)) do redis.call('ZADD', KEYS[2], 'XX', int(t + ARGV[2]), w) end
end
local gone = redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', int(t))
for _, worker in ipairs(gone) do
  redis.call('ZREM', KEYS[2], worker)
  redis.call('HDEL', KEYS[1], worker)
end
-- The version is a time, not a count: after a wipe it cannot come out equal by accident.
if #gone > 0 then redis.call('SET', KEYS[3], int(t)) end
local version = redis.call('GET', KEYS[3]) or '0'
if version == ARGV[1] then return {version} end
return {version, redis.call('SMEMBERS', KEYS[4]), redis.call('HGETALL', KEYS[1])}
