-- An operator withdraws a model from the clients, or offers it again. KEYS 1 unloaded models 2 version
-- ARGV 1 model 2 offered (1, 0)
lift_oom(KEYS[1])
local changed
if ARGV[2] == '1' then changed = redis.call('SREM', KEYS[1], ARGV[1]) else changed = redis.call('SADD', KEYS[1], ARGV[1]) end
if changed == 1 then redis.call('SET', KEYS[2], int(now_us())) end
return changed
