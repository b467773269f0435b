-- A gateway ends requests that nobody waits for any more. Unknown ids leave nothing behind. For a job others may wait:
-- they are told.
-- KEYS  1 deadlines
-- ARGV  1 T  2 status (CANCELLED, EXPIRED)  then the ids
-- Returns the state before, a request; GONE without a record.
local T, status = ARGV[1], ARGV[2]
lift_oom(KEYS[1])
local out, sums, saved, lanes = {}, {}, 0, {}
for i = 3, #ARGV do
  local rid = ARGV[i]
  local h = look_at(T, rid)
  out[#out + 1] = h[ST] or 'GONE'
  if h[ST] and not terminal(h[ST]) then
    if h[AS] then
      finish(T, rid, h, status, status == 'CANCELLED' and '!cancelled|the request was cancelled'
        or '!deadline|the deadline passed before an answer was ready', sums)
    else
      local R = T .. ':r:' .. rid
      unqueue(T, rid, h)
      redis.call('ZREM', KEYS[1], rid)
      redis.call('UNLINK', T .. ':p:' .. rid)
      redis.call('HSET', R, 'st', status)
      redis.call('HDEL', R, 'm', 'own')
      untally(sums, h)
    end
    if h[ST] == 'RUNNING' then
      -- Its worker hears of it at once, and drops it if it has not begun.
      redis.call('XADD', T .. ':k:' .. h[OWN], 'MAXLEN', '~', 1000, '*', 'r', rid, 's', status)
      redis.call('PEXPIRE', T .. ':k:' .. h[OWN], 60000)
    else
      saved = saved + 1
      lanes[h[PR]] = true
    end
  end
end
book(T, sums)
for priority in pairs(lanes) do refill(T, priority, 0) end
if saved > 0 then
  redis.call('HINCRBY', T .. ':stats', status == 'CANCELLED' and 'cancel_saved_count' or 'expire_saved_count', saved)
end
return out
