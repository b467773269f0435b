-- A worker takes work: entries a blocking read delivered to it already (given), then new ones, lane by lane.
-- KEYS  1 leases  2.. lanes
-- ARGV  1 group  2 consumer  3 want  4 bytes max  5 lease us  6 record prefix  7 payload prefix
--       then 3 a given entry: lane, entry id, id
-- Returns a list a request: lane, entry id, attempt, us left, us since its first delivery (0 at the first),
--   us since it was accepted, gateway, payload, the entry's fields (for a given entry: its id alone).
local group, consumer, want, bytes_max = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
local prefix, payloads = ARGV[6], ARGV[7]
lift_oom(KEYS[1])
local t, out, bytes = now_us(), {}, 0
local started = int(t)
-- The lease comes first: whoever owns an entry is always known to the tick.
redis.call('ZADD', KEYS[1], int(t + tonumber(ARGV[5])), consumer)
local function start(lane, sid, rid, fields)
  local R = prefix .. rid
  local h = redis.call('HMGET', R, 'st', 'sid', 'dl', 'f', 'gw', 'enq', 'a', 'q')
  -- Entry ids are unique within a lane only: one handed on within a millisecond has the same id in the other lane.
  if not h[1] or terminal(h[1]) or h[2] ~= sid or h[8] ~= lane then
    redis.call('XACK', lane, group, sid); redis.call('XDEL', lane, sid)
    return
  end
  local left = tonumber(h[3]) - t
  if left <= 0 then return end  -- stays pending: the tick ends it with a reply
  local payload = redis.call('GET', payloads .. rid)
  if not payload then return end  -- only by an operator's hand; its deadline will end it
  local attempt = int(tonumber(h[7]) + 1)
  local lost = h[4] and int(t - tonumber(h[4])) or '0'
  redis.call('HSET', R, 'st', 'RUNNING', 'a', attempt, 'own', consumer, 'f', h[4] or started)
  bytes = bytes + #payload
  out[#out + 1] = {lane, sid, attempt, int(left), lost, int(t - tonumber(h[6])), h[5], payload, fields}
end
for i = 8, #ARGV, 3 do start(ARGV[i], ARGV[i + 1], ARGV[i + 2], {'r', ARGV[i + 2]}) end
for k = 2, #KEYS do
  while #out < want and bytes < bytes_max do
    -- In small steps, since the payload's size is known only afterwards.
    local n = math.min(want - #out, 16)
    local r = redis.pcall('XREADGROUP', 'GROUP', group, consumer, 'COUNT', n, 'STREAMS', KEYS[k], '>')
    if not r then break end
    if r.err then
      -- No group. What was started above must not be forgotten; the next call starts nothing and meets the error.
      if #out > 0 then return out end
      return redis.error_reply(r.err)
    end
    local entries = r[1][2]
    for _, entry in ipairs(entries) do start(KEYS[k], entry[1], entry[2][2], entry[2]) end
    if #entries < n then break end
  end
  if #out >= want or bytes >= bytes_max then break end
end
return out
