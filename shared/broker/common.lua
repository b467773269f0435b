-- Prepended to every script, after the names that shared/keys.py gives. T is what all keys of a queue begin with; what
-- each key holds is in docs/architecture.md. Times are microseconds of Redis' own clock: no clock of another host takes part.
local function now_us() local t = redis.call('TIME'); return t[1] * 1000000 + t[2] end
local function int(n) return string.format('%.0f', n) end
local function terminal(st)
  return st == 'DONE' or st == 'FAILED' or st == 'CANCELLED' or st == 'EXPIRED' or st == 'DEAD'
end
local function lift_oom(key) redis.call('DEL', key .. ':_') end  -- a first write that is not deny-oom lets the rest pass
local function push(lists, key, value)
  local list = lists[key]
  if not list then list = {}; lists[key] = list end
  list[#list + 1] = value
end
local function sliced(list, call)  -- `unpack` takes some thousands of values; an even number keeps pairs together
  for i = 1, #list, 2000 do call(unpack(list, i, math.min(i + 1999, #list))) end
end
local function drop_entries(by_lane)
  for lane, ids in pairs(by_lane) do
    sliced(ids, function(...) redis.call('XACK', lane, GROUP, ...); redis.call('XDEL', lane, ...) end)
  end
end

-- T:c counts what is live: requests by priority (l1 l2 l3) and by tenant (t:NAME), bytes of payload (b).
local function tally(sums, priority, tenant, requests, bytes)
  local l, t = 'l' .. priority, 't:' .. tenant
  sums[l] = (sums[l] or 0) + requests
  sums[t] = (sums[t] or 0) + requests
  sums.b = (sums.b or 0) + bytes
end
local function book(T, sums)
  for field, n in pairs(sums) do
    if redis.call('HINCRBY', T .. ':c', field, n) <= 0 then redis.call('HDEL', T .. ':c', field) end
  end
end

-- What a script must know of a request to end it or to move it. W, how many clients' requests it is, only a parcel has.
local ST, Q, SID, GW, PR, TN, N, AS, OWN, HOOK, A, W = 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12
local function untally(sums, h) tally(sums, h[PR], h[TN], -tonumber(h[W] or 1), -tonumber(h[N])) end
local function look_at(T, rid)
  return redis.call('HMGET', T .. ':r:' .. rid, 'st', 'q', 'sid', 'gw', 'pr', 'tn', 'n', 'as', 'own', 'hook', 'a', 'w')
end
local function unqueue(T, rid, h)  -- out of wherever it waits or runs
  if h[ST] == 'WAITING' then redis.call('LREM', T .. ':w:' .. h[PR] .. ':' .. h[TN], 1, rid)
  elseif h[ST] == 'DELAYED' then redis.call('ZREM', T .. ':delay', rid)
  else redis.call('XACK', h[Q], GROUP, h[SID]); redis.call('XDEL', h[Q], h[SID]) end
end
local function each_gateway(gateways, call)
  for gateway in string.gmatch(gateways, '[^,]+') do call(gateway) end
end
local function finish(T, rid, h, status, answer, sums)  -- with a verdict of our own
  local R = T .. ':r:' .. rid
  unqueue(T, rid, h)
  redis.call('ZREM', T .. ':dl', rid)
  redis.call('HSET', R, 'st', status)
  redis.call('HDEL', R, 'm', 'own')
  if h[AS] then redis.call('PEXPIRE', R, h[AS]) end
  redis.call('SET', T .. ':p:' .. rid, answer, 'PX', math.max(1, redis.call('PTTL', R)))
  each_gateway(h[GW], function(gateway) redis.call('XADD', T .. ':g:' .. gateway, 'NOMKSTREAM', '*', rid, answer) end)
  if h[HOOK] then redis.call('XADD', T .. ':hooks', 'MAXLEN', '~', 100000, '*', 'r', rid) end
  untally(sums, h)
end
local function lane_after(T, lane)  -- a suspect stays one until it ends: it must not meet others again
  return lane == T .. ':q:' .. SUSPECTS and lane or T .. ':q:0'
end
local function entry_fields(lane, sid)  -- the message headers travel on; nil when the entry is gone
  local entry = redis.call('XRANGE', lane, sid, sid)
  return entry[1] and entry[1][2]
end
local function enqueue(T, rid, lane, fields)  -- QUEUED, wherever it comes from
  local sid = redis.call('XADD', lane, '*', unpack(fields))
  redis.call('HSET', T .. ':r:' .. rid, 'st', 'QUEUED', 'q', lane, 'sid', sid)
  redis.call('HDEL', T .. ':r:' .. rid, 'own', 'm')
  return sid
end

-- Dead letters: whole in one entry, so that nothing else has to be kept. The oldest go when there are too many.
local function bury(T, rid, why, answer)
  local h = redis.call('HMGET', T .. ':r:' .. rid, 'a', 'er', 'cr', 'lo', 'own', 'tn', 'pr', 'tp', 'enq', 'ask', 'hook', 'w')
  if h[12] then return end  -- a parcel's gateway hands the requests in it over one by one
  local payload, dlq = redis.call('GET', T .. ':p:' .. rid) or '', T .. ':dlq'
  redis.call('XADD', dlq, '*', 'r', rid, 'why', why, 'a', h[1] or '0', 'er', h[2] or '0', 'cr', h[3] or '0',
    'lo', h[4] or '0', 'own', h[5] or '', 'tn', h[6] or '', 'pr', h[7] or '2', 'tp', h[8] or '', 'enq', h[9] or '0',
    'ask', h[10] or '', 'hook', h[11] or '', 'end', answer, 'p', payload)
  local bytes = redis.call('HINCRBY', T .. ':stats', 'dlq_bytes', #payload)
  if redis.call('XLEN', dlq) == 1 then  -- an operator may have deleted the others
    bytes = #payload
    redis.call('HSET', T .. ':stats', 'dlq_bytes', bytes)
  end
  redis.call('HINCRBY', T .. ':stats', 'dead_count', 1)
  while redis.call('XLEN', dlq) > DLQ_MAX or (bytes > DLQ_BYTES_MAX and redis.call('XLEN', dlq) > 1) do
    local oldest = redis.call('XRANGE', dlq, '-', '+', 'COUNT', 1)[1]
    redis.call('XDEL', dlq, oldest[1])
    bytes = redis.call('HINCRBY', T .. ':stats', 'dlq_bytes', -#oldest[2][#oldest[2]])
  end
end

-- The waiting room: one list a tenant and priority, and a ring of tenants by virtual time (start-time fair queueing).
local function undelivered(lane)
  local pending = redis.pcall('XPENDING', lane, GROUP)
  return redis.call('XLEN', lane) - (pending.err and 0 or pending[1])
end
local function pump(T, priority, limit)
  local ring, lane, moved = T .. ':ring:' .. priority, T .. ':q:' .. priority, 0
  local vt
  while moved < limit do
    local heads = redis.call('ZRANGE', ring, 0, 1, 'WITHSCORES')
    if not heads[1] then break end
    local tenant, turn = heads[1], tonumber(heads[2])
    local list = T .. ':w:' .. priority .. ':' .. tenant
    local n = heads[3] and 1 or limit - moved  -- who waits alone has all turns
    local ids = redis.call('LPOP', list, n) or {}
    for _, rid in ipairs(ids) do
      local h = redis.call('HMGET', T .. ':r:' .. rid, 'st', 'm')
      if h[1] == 'WAITING' then
        local m = cmsgpack.unpack(h[2])  -- weight, then the entry's fields
        enqueue(T, rid, lane, m[2])
        vt = turn
        turn = turn + 1 / m[1]
        moved = moved + 1
      end
    end
    if #ids < n or redis.call('EXISTS', list) == 0 then redis.call('ZREM', ring, tenant)
    else redis.call('ZADD', ring, turn, tenant) end
  end
  if vt then redis.call('HSET', T .. ':vt', priority, vt) end
end
local function refill(T, priority, more)  -- while somebody waits for its turn there is always something to be taken
  if redis.call('EXISTS', T .. ':ring:' .. priority) == 1 then
    pump(T, priority, READY_MAX + more - undelivered(T .. ':q:' .. priority))
  end
end
