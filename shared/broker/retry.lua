-- A worker's attempt failed in a way that may pass: again later, unless that was tried often enough, or would be too late.
-- KEYS  1 deadlines
-- ARGV  1 T  2 errors max  then 4 a request: id, attempt, delay us, answer if there is no further try
-- Returns a status a request: RETRY, OK (given up: FAILED with the answer), OKDUP, STALE, GONE.
local T, errors_max = ARGV[1], tonumber(ARGV[2])
lift_oom(KEYS[1])
local t, out, sums = now_us(), {}, {}
for i = 3, #ARGV, 4 do
  local rid, attempt, delay, answer = ARGV[i], ARGV[i + 1], tonumber(ARGV[i + 2]), ARGV[i + 3]
  local R = T .. ':r:' .. rid
  local h = look_at(T, rid)
  if not h[ST] then
    out[#out + 1] = 'GONE'
  elseif h[A] == attempt and (h[ST] == 'DELAYED' or h[ST] == 'FAILED') then
    out[#out + 1] = h[ST] == 'DELAYED' and 'RETRY' or 'OKDUP'
  elseif h[ST] ~= 'RUNNING' or h[A] ~= attempt then
    out[#out + 1] = 'STALE'
  else
    local errors = redis.call('HINCRBY', R, 'er', 1)
    local fields = entry_fields(h[Q], h[SID])
    if errors < errors_max and fields and t + delay < tonumber(redis.call('HGET', R, 'dl')) then
      unqueue(T, rid, h)
      redis.call('HSET', R, 'st', 'DELAYED', 'm', cmsgpack.pack({1, fields}))
      redis.call('HDEL', R, 'own')
      redis.call('ZADD', T .. ':delay', int(t + delay), rid)
      out[#out + 1] = 'RETRY'
    else
      if errors >= errors_max then bury(T, rid, 'errors', answer) end
      finish(T, rid, h, 'FAILED', answer, sums)
      out[#out + 1] = 'OK'
    end
  end
end
book(T, sums)
return out
