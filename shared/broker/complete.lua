-- A worker hands in the answers of a batch. Idempotent: the same attempt and status again answers OKDUP.
-- KEYS  1 deadlines
-- ARGV  1 group  2 record prefix  3 payload prefix  4 reply prefix  5 inline bytes max
--       then 4 a request: id, attempt, status (DONE, FAILED), answer
-- Returns a status a request: OK, OKDUP, STALE (another attempt or verdict came first), GONE (no record).
local group, prefix, payloads, replies, inline_max = ARGV[1], ARGV[2], ARGV[3], ARGV[4], tonumber(ARGV[5])
lift_oom(KEYS[1])
local out, by_gateway, by_lane, done = {}, {}, {}, {}
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
    redis.call('HSET', R, 'st', status)
    redis.call('SET', payloads .. rid, answer, 'KEEPTTL')  -- the answer takes the payload's place
    push(by_lane, h[3], h[4])
    push(by_gateway, h[5], rid)
    push(by_gateway, h[5], #answer <= inline_max and answer or '')
    done[#done + 1] = rid
    out[#out + 1] = 'OK'
  end
end
-- Acknowledged means deleted, so the stream's length is exactly what is queued and running.
drop_entries(group, by_lane)
sliced(done, function(...) redis.call('ZREM', KEYS[1], ...) end)
for gateway, fields in pairs(by_gateway) do
  -- One entry rings for many answers.
  sliced(fields, function(...) redis.call('XADD', replies .. gateway, 'NOMKSTREAM', '*', ...) end)
end
return out
