-- A worker proves that it lives, and asks which of its requests are still its own.
-- KEYS  1 leases
-- ARGV  1 T  2 consumer  3 lease us  4 us a request at its best (0 unknown)  then 2 a request: id, attempt
-- Returns LIVE or LOST (the lease had been given up: the work was handed on), then 1 if this worker shall run the
-- suspects, else 0, then the ids that are not its own now.
local T, consumer = ARGV[1], ARGV[2]
lift_oom(KEYS[1])
local out = {redis.call('ZSCORE', KEYS[1], consumer) and 'LIVE' or 'LOST', '0'}
redis.call('ZADD', KEYS[1], int(now_us() + tonumber(ARGV[3])), consumer)
if ARGV[4] ~= '0' then redis.call('HSET', T .. ':pace', consumer, ARGV[4]) end
if redis.call('XLEN', T .. ':q:' .. SUSPECTS) > 0 then
  local runner = redis.call('GET', T .. ':solo')
  if not runner or not redis.call('ZSCORE', KEYS[1], runner) then
    redis.call('SET', T .. ':solo', consumer, 'PX', 3600000)
    runner = consumer
  end
  if runner == consumer then out[2] = '1' end
end
for i = 5, #ARGV, 2 do
  local h = redis.call('HMGET', T .. ':r:' .. ARGV[i], 'st', 'a', 'own')
  if h[1] ~= 'RUNNING' or h[2] ~= ARGV[i + 1] or h[3] ~= consumer then out[#out + 1] = ARGV[i] end
end
return out
