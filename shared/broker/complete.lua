-- A worker hands in the answers of a batch. Idempotent: the same attempt and status again answers OKDUP.
-- KEYS  1 deadlines
-- ARGV  1 group  2 record prefix  3 reply prefix  4 record ttl ms  5 inline bytes max
--       then 4 a request: id, attempt, status (DONE, FAILED), answer
-- Returns a status a request: OK, OKDUP, STALE (another attempt or verdict came first), GONE (no record).
local group, prefix, replies, ttl, inline_max = ARGV[1], ARGV[2], ARGV[3], ARGV[4], tonumber(ARGV[5])
lift_oom(KEYS[1])
local out, by_gateway = {}, {}
for i = 6, #ARGV, 4 do
  local rid, attempt, status, answer = ARGV[i], ARGV[i + 1], ARGV[i + 2], ARGV[i + 3]
  local R = prefix .. rid
  local h = redis.call('HMGET', R, 'st', 'a', 'q', 'sid', 'gw')
  if not h[1] then
    out[#out + 1] = 'GONE'
  elseif terminal(h[1]) then
    out[#out + 1] = (h[2] == attempt and h[1] == status) and 'OKDUP' or 'STALE'
  elseif h[2] ~= attempt then
    out[#out + 1] = 'STALE'
  else
    -- Acknowledged means deleted, so the stream's length is exactly what is queued and running.
    redis.call('XACK', h[3], group, h[4]); redis.call('XDEL', h[3], h[4])
    redis.call('ZREM', KEYS[1], rid)
    redis.call('HDEL', R, 'p')
    redis.call('HSET', R, 'st', status, 'res', answer)
    redis.call('PEXPIRE', R, ttl)
    local to = by_gateway[h[5]]
    if not to then to = {}; by_gateway[h[5]] = to end
    to[#to + 1] = rid
    to[#to + 1] = #answer <= inline_max and answer or ''
    out[#out + 1] = 'OK'
  end
end
for gateway, fields in pairs(by_gateway) do
  -- One entry rings for many answers; `unpack` takes some thousands of values, so in slices.
  for i = 1, #fields, 2000 do
    redis.call('XADD', replies .. gateway, 'NOMKSTREAM', '*', unpack(fields, i, math.min(i + 1999, #fields)))
  end
end
return out
