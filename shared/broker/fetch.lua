-- A worker takes work: entries a blocking read delivered to it already (given), then new ones, lane by lane.
-- KEYS  1 leases  2.. lanes
-- ARGV  1 group  2 consumer  3 want  4 bytes max  5 lease us  6 record prefix, then 3 a given entry: lane, entry id, id
-- Returns a list a request: id, lane, entry id, attempt, us left, us since its first delivery (0 at the first),
--   us since it was accepted, gateway, schema, content type, traceparent, tracestate, handed over ns, payload.
local group, consumer, want, bytes_max, prefix = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4]), ARGV[6]
lift_oom(KEYS[1])
local t, out, bytes = now_us(), {}, 0
-- The lease comes first: whoever owns an entry is always known to the tick.
redis.call('ZADD', KEYS[1], int(t + tonumber(ARGV[5])), consumer)
local function start(lane, sid, rid)
  local R = prefix .. rid
  local h = redis.call('HMGET', R, 'st', 'sid', 'dl', 'f', 'gw', 'v', 'ct', 'tp', 'ts', 'g3', 'p', 'enq', 'a')
  if not h[1] or terminal(h[1]) or h[2] ~= sid then
    redis.call('XACK', lane, group, sid); redis.call('XDEL', lane, sid)
    return
  end
  local left = tonumber(h[3]) - t
  if left <= 0 then return end  -- stays pending: the tick ends it with a reply
  local attempt = int(tonumber(h[13]) + 1)
  local first = h[4] and tonumber(h[4]) or t
  redis.call('HSET', R, 'st', 'RUNNING', 'a', attempt, 'own', consumer, 'f', int(first))
  bytes = bytes + #h[11]
  out[#out + 1] = {rid, lane, sid, attempt, int(left), int(t - first), int(t - tonumber(h[12])),
    h[5], h[6], h[7], h[8], h[9], h[10], h[11]}
end
for i = 7, #ARGV, 3 do start(ARGV[i], ARGV[i + 1], ARGV[i + 2]) end
for k = 2, #KEYS do
  while #out < want and bytes < bytes_max do
    -- In small steps, since the payload's size is known only afterwards.
    local n = math.min(want - #out, 16)
    local r = redis.call('XREADGROUP', 'GROUP', group, consumer, 'COUNT', n, 'STREAMS', KEYS[k], '>')
    if not r then break end
    for _, entry in ipairs(r[1][2]) do start(KEYS[k], entry[1], entry[2][2]) end
  end
  if #out >= want or bytes >= bytes_max then break end
end
return out
