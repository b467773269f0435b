-- A worker takes work: entries a blocking read delivered to it already (given), then new ones by priority.
-- KEYS  1 leases
-- ARGV  1 T  2 consumer  3 want  4 bytes max  5 lease us  6 alone (1: one of the suspects, and nothing else)
--       7 begins (1: it computes at once what it gets, which is noted as running)
--       then 3 a given entry: lane, entry id, id; nothing else comes with a suspect
-- Returns a list a request: lane, entry id, attempt, us left, us since its first delivery (0 at the first),
--   us since it was accepted, gateway, payload, the entry's fields (for a given entry: its id alone).
local T, consumer, want, bytes_max = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
lift_oom(KEYS[1])
local t, out, begun, bytes, sums, alive = now_us(), {}, {}, 0, {}, {['']=true}
local started = int(t)
-- The lease comes first: whoever owns an entry is always known to the tick.
redis.call('ZADD', KEYS[1], int(t + tonumber(ARGV[5])), consumer)
local function listens(gateways)
  if alive[gateways] == nil then
    local found = false
    each_gateway(gateways, function(g) found = found or redis.call('EXISTS', T .. ':g:' .. g) == 1 end)
    alive[gateways] = found
  end
  return alive[gateways]
end
local function start(lane, sid, rid, fields)
  local R = T .. ':r:' .. rid
  local h = redis.call('HMGET', R, 'st', 'sid', 'dl', 'f', 'gw', 'enq', 'a', 'q', 'as', 'pr', 'tn', 'n', 'w')
  -- Entry ids are unique within a lane only: one handed on within a millisecond has the same id in the other lane.
  if (h[1] ~= 'QUEUED' and h[1] ~= 'RUNNING') or h[2] ~= sid or h[8] ~= lane then
    redis.call('XACK', lane, GROUP, sid); redis.call('XDEL', lane, sid)
    return
  end
  local left = tonumber(h[3]) - t
  if left <= 0 then return end  -- stays pending: the tick ends it with a reply
  if not h[9] and not listens(h[5]) then
    -- Its gateway is dead: nobody would get the answer. Without a record a gateway that was only frozen asks again.
    redis.call('XACK', lane, GROUP, sid); redis.call('XDEL', lane, sid)
    redis.call('ZREM', T .. ':dl', rid)
    redis.call('UNLINK', R, T .. ':p:' .. rid)
    tally(sums, h[10], h[11], -tonumber(h[13] or 1), -tonumber(h[12]))
    redis.call('HINCRBY', T .. ':stats', 'orphan_count', 1)
    return
  end
  local payload = redis.call('GET', T .. ':p:' .. rid)
  if not payload then return end  -- only by an operator's hand; its deadline will end it
  local attempt = int(tonumber(h[7]) + 1)
  local lost = h[4] and int(t - tonumber(h[4])) or '0'
  redis.call('HSET', R, 'st', 'RUNNING', 'a', attempt, 'own', consumer, 'f', h[4] or started)
  bytes = bytes + #payload
  begun[#begun + 1] = rid
  out[#out + 1] = {lane, sid, attempt, int(left), lost, int(t - tonumber(h[6])), h[5], payload, fields}
end
local function read(lane, n)  -- entries delivered, or an error
  local r = redis.pcall('XREADGROUP', 'GROUP', GROUP, consumer, 'COUNT', n, 'STREAMS', lane, '>')
  if not r then return 0 end
  if r.err then return 0, r.err end
  for _, entry in ipairs(r[1][2]) do start(lane, entry[1], entry[2][2], entry[2]) end
  return #r[1][2]
end

local suspects = T .. ':q:' .. SUSPECTS
local alone = ARGV[6] == '1'
for i = 8, #ARGV, 3 do
  alone = alone or ARGV[i] == suspects
  start(ARGV[i], ARGV[i + 1], ARGV[i + 2], {'r', ARGV[i + 2]})
end
local err
if alone then
  if #ARGV == 7 and redis.call('GET', T .. ':solo') == consumer then err = select(2, read(suspects, 1)) end
else
  local busy = {}
  local waits = redis.call('EXISTS', T .. ':ring:1', T .. ':ring:2', T .. ':ring:3') > 0
  for k = 0, 3 do
    if k > 0 and waits then refill(T, k, want) end
    if redis.call('XLEN', T .. ':q:' .. k) > 0 then busy[#busy + 1] = T .. ':q:' .. k end
  end
  -- In order of priority; but of so many requests one is from a lane below the first, which take turns.
  local turn = #busy > 1 and tonumber(redis.call('HGET', T .. ':vt', 'turn') or 0) or nil
  local turn_was = turn
  local below = math.max(1, #busy - (busy[1] == T .. ':q:0' and 2 or 1))
  while #out < want and bytes < bytes_max and not err do
    local got = 0
    if turn and turn % LOWER_TURN == LOWER_TURN - 1 then
      local first = #busy - math.floor(turn / LOWER_TURN) % below
      for i = 0, #busy - 1 do
        got, err = read(busy[(first - 1 - i) % #busy + 1], 1)
        if got > 0 or err then break end
      end
      turn = (turn + 1) % (LOWER_TURN * 6)  -- 6: whether one, two or three take turns
    else
      -- In small steps, since a payload's size is known only afterwards.
      local n = math.min(want - #out, 16, turn and LOWER_TURN - 1 - turn % LOWER_TURN or 16)
      for b = 1, #busy do
        local more
        more, err = read(busy[b], n - got)
        got = got + more
        if turn and b < #busy then turn = turn + more end
        if got >= n or err then break end
      end
    end
    if got == 0 then break end
  end
  if turn ~= turn_was then redis.call('HSET', T .. ':vt', 'turn', turn) end
  if #busy == 0 then err = select(2, read(T .. ':q:2', 1)) end  -- nothing there: see that the group is
end
book(T, sums)
if ARGV[7] == '1' then redis.call('HSET', T .. ':run', consumer, table.concat(begun, ' ')) end
-- No group: what was started above must not be forgotten; the next call starts nothing and meets the error.
if err and #out == 0 then return redis.error_reply(err) end
return out
