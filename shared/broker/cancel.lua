-- A gateway ends requests that nobody waits for any more. Unknown ids leave nothing behind.
-- KEYS  1 deadlines
-- ARGV  1 group  2 record prefix  3 payload prefix  4 status (CANCELLED, EXPIRED), then the ids
-- Returns the state before, a request; GONE without a record.
local group, prefix, payloads, status = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
lift_oom(KEYS[1])
local out = {}
for i = 5, #ARGV do
  local rid, R = ARGV[i], prefix .. ARGV[i]
  local h = redis.call('HMGET', R, 'st', 'q', 'sid')
  out[#out + 1] = h[1] or 'GONE'
  if h[1] and not terminal(h[1]) then
    redis.call('XACK', h[2], group, h[3]); redis.call('XDEL', h[2], h[3])
    redis.call('ZREM', KEYS[1], rid)
    redis.call('UNLINK', payloads .. rid)
    redis.call('HSET', R, 'st', status)
  end
end
return out
