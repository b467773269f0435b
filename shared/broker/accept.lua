-- A gateway hands over requests. Idempotent: a record that exists answers DUP.
-- KEYS  1 deadlines
-- ARGV  1 T  2 gateway  3 queue max  4 bytes max  5 tenant max (by default)  6 extra ttl ms  7 schema  8 reply stream ttl ms
--       then 12 a request: id, budget us, payload, priority (1 2 3), tenant, weight, the tenant's own max (or 0),
--       traceparent, tracestate, handed over ns, job (msgpack, or nothing), how many
--       clients' requests it is (more than 1: a parcel)
-- A job is a map: ttl, ms its result is kept; ask, how to render it; hook, the address its end is told to; key and hash, the
-- client's idempotency key and what it covers; sync, 1 if the gateway waits for it.
-- Returns a pair a request: OK and the entry id (nothing when it waits for its tenant's turn), DUP and the state,
--   SAME and the id that has this idempotency key, MISMATCH and that id, FULL and the length, BYTES and the bytes,
--   TENANT and the tenant's requests, HOPELESS and the wait in us that is foreseen, OOM.
local T, gateway = ARGV[1], ARGV[2]
local queue_max, bytes_max, tenant_max, extra = tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6])
local t, out, deadlines, sums, tenants, lanes = now_us(), {}, {}, {}, {}, {}
local enq = int(t)
local live = redis.call('HMGET', T .. ':c', 'b', 'l1', 'l2', 'l3')
local bytes = tonumber(live[1] or 0)
local ahead = {tonumber(live[2] or 0), tonumber(live[3] or 0), tonumber(live[4] or 0)}
local length = ahead[1] + ahead[2] + ahead[3]
local pace = 0  -- requests a us, of all workers at their best
for _, us in ipairs(redis.call('HVALS', T .. ':pace')) do pace = pace + 1 / math.max(1, tonumber(us)) end
-- A gateway that listens has a reply stream; fetch takes one without for dead.
if redis.call('EXISTS', T .. ':g:' .. gateway) == 0 then
  if type(redis.pcall('XADD', T .. ':g:' .. gateway, '*', 'hello', '')) == 'string' then
    redis.call('PEXPIRE', T .. ':g:' .. gateway, ARGV[8])
  end
end
local refused = nil

local function why_not(i, size)  -- nil when there is room
  local priority, tenant, own_max = tonumber(ARGV[i + 3]), ARGV[i + 4], tonumber(ARGV[i + 6])
  if refused then return refused, '' end
  local n = tonumber(ARGV[i + 11])
  if length + n > queue_max then return 'FULL', int(length) end
  if bytes + size > bytes_max then return 'BYTES', int(bytes) end
  local held = tenants[tenant]
  if not held then held = tonumber(redis.call('HGET', T .. ':c', 't:' .. tenant) or 0); tenants[tenant] = held end
  if held + n > (own_max > 0 and own_max or tenant_max) then return 'TENANT', int(held) end
  if pace > 0 then
    -- Of its own priority: tenants take turns once there is a backlog, so what others have waiting is not all before it.
    local before = math.min(ahead[priority], READY_MAX + held)
    for k = 1, priority - 1 do before = before + ahead[k] end
    local wait = before / pace
    if wait > tonumber(ARGV[i + 1]) then return 'HOPELESS', int(wait) end
  end
end

for i = 9, #ARGV, 12 do
  local rid, payload, priority, tenant = ARGV[i], ARGV[i + 2], ARGV[i + 3], ARGV[i + 4]
  local R, n = T .. ':r:' .. rid, tonumber(ARGV[i + 11])
  local st = redis.call('HGET', R, 'st')
  local job = ARGV[i + 10] ~= '' and cmsgpack.unpack(ARGV[i + 10]) or nil
  local status, detail
  if st then
    status, detail = 'DUP', st
  elseif job and job.key then
    local first = redis.call('GET', T .. ':i:' .. tenant .. ':' .. job.key)
    if first then
      local bar = string.find(first, '|', 1, true)
      local id = string.sub(first, 1, bar - 1)
      if redis.call('EXISTS', T .. ':r:' .. id) == 1 then
        status, detail = string.sub(first, bar + 1) == job.hash and 'SAME' or 'MISMATCH', id
      end
    end
  end
  if not status then status, detail = why_not(i, #payload) end
  if not status then
    local fields = {'r', rid, 'v', ARGV[7], 'ct', n > 1 and PARCEL_TYPE or CONTENT_TYPE, 'tp', ARGV[i + 7], 'ts', ARGV[i + 8], 'g3', ARGV[i + 9]}
    local lane = T .. ':q:' .. priority
    local state = lanes[priority]
    if not state then
      state = {undelivered(lane), redis.call('ZCARD', T .. ':ring:' .. priority) > 0}
      lanes[priority] = state
    end
    local waits = state[2] or state[1] >= READY_MAX
    local sid
    -- The first write is a deny-oom one, so a full Redis refuses cleanly, and only new work.
    if waits then sid = redis.pcall('RPUSH', T .. ':w:' .. priority .. ':' .. tenant, rid)
    else sid = redis.pcall('XADD', lane, '*', unpack(fields)) end
    if type(sid) == 'table' then
      if not string.find(sid.err, 'OOM', 1, true) then return redis.error_reply(sid.err) end
      refused = 'OOM'
      status, detail = refused, ''
    else
      local deadline = int(t + tonumber(ARGV[i + 1]))
      local ttl = int(tonumber(ARGV[i + 1]) / 1000 + extra + (job and job.ttl or 0))
      -- The payload has a key of its own: a hash of short values only stays compact, and is written in half the time.
      redis.call('HSET', R, 'st', waits and 'WAITING' or 'QUEUED', 'q', lane, 'sid', waits and '' or sid, 'a', '0',
        'enq', enq, 'dl', deadline, 'gw', (job and not job.sync) and '' or gateway, 'tn', tenant, 'pr', priority,
        'n', #payload, 'tp', ARGV[i + 7])
      redis.call('PEXPIRE', R, ttl)
      redis.call('SET', T .. ':p:' .. rid, payload, 'PX', ttl)
      if waits then
        redis.call('HSET', R, 'm', cmsgpack.pack({tonumber(ARGV[i + 5]) / n, fields}))
        redis.call('ZADD', T .. ':ring:' .. priority, 'NX', redis.call('HGET', T .. ':vt', priority) or 0, tenant)
        state[2] = true
      else
        state[1] = state[1] + 1
      end
      if n > 1 then redis.call('HSET', R, 'w', n) end
      if job then
        redis.call('HSET', R, 'as', job.ttl, 'ask', job.ask)
        if job.hook then redis.call('HSET', R, 'hook', job.hook) end
        if job.key then redis.call('SET', T .. ':i:' .. tenant .. ':' .. job.key, rid .. '|' .. job.hash, 'PX', ttl) end
      end
      deadlines[#deadlines + 1] = deadline; deadlines[#deadlines + 1] = rid
      tally(sums, priority, tenant, n, #payload)
      length, bytes, tenants[tenant] = length + n, bytes + #payload, tenants[tenant] + n
      ahead[tonumber(priority)] = ahead[tonumber(priority)] + n
      status, detail = 'OK', waits and '' or sid
    end
  end
  out[#out + 1] = status; out[#out + 1] = detail
end
if #deadlines > 0 then
  redis.call('ZADD', KEYS[1], unpack(deadlines))
  book(T, sums)
end
for priority, state in pairs(lanes) do
  if state[2] then refill(T, priority, 0) end  -- those who waited may all have been cancelled
end
return out
