-- A gateway asks who is there. KEYS 1 workers 2 leases 3 version 4 unloaded models
-- ARGV 1 the version it knows
-- Returns {version} when nothing moved, else {version, {unloaded models}, {worker, descriptor, ...}}. Drops workers whose lease ran out.
lift_oom(KEYS[2])
local gone = redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', int(now_us()))
for _, worker in ipairs(gone) do
  redis.call('ZREM', KEYS[2], worker)
  redis.call('HDEL', KEYS[1], worker)
end
-- The version is a time, not a count: after a wipe it cannot come out equal by accident.
if #gone > 0 then redis.call('SET', KEYS[3], int(now_us())) end
local version = redis.call('GET', KEYS[3]) or '0'
if version == ARGV[1] then return {version} end
return {version, redis.call('SMEMBERS', KEYS[4]), redis.call('HGETALL', KEYS[1])}
