-- Housekeeping of one queue, by whoever leads: ends what is overdue, enqueues what is due, hands on what the dead held.
-- KEYS  1 leases  2 deadlines  3 last tick  4 leader
-- ARGV  1 T  2 me  3 leader ttl ms  4 grace us  5 limit  6 crashes max  7 losses max
-- Returns FOLLOW, or LEAD, us that Redis stood still (0 mostly), then lists of ids: overdue, due again, handed on,
--   suspected of the crash of their worker, dead; then the consumers whose lease ran out.
local T, me, limit = ARGV[1], ARGV[2], tonumber(ARGV[5])
local leader_ttl, grace, crashes_max, losses_max = ARGV[3], tonumber(ARGV[4]), tonumber(ARGV[6]), tonumber(ARGV[7])
lift_oom(KEYS[1])
if redis.call('GET', KEYS[4]) ~= me and not redis.call('SET', KEYS[4], me, 'NX', 'PX', leader_ttl) then return {'FOLLOW'} end
redis.call('PEXPIRE', KEYS[4], leader_ttl)
local t = now_us()
local last = tonumber(redis.call('GET', KEYS[3]) or '0')
redis.call('SET', KEYS[3], int(t), 'PX', 86400000)

-- Lease clocks stop while Redis stands still: nobody could renew, so nobody is dead for that.
local gap = t - last
if last > 0 and gap > grace then
  for _, c in ipairs(redis.call('ZRANGE', KEYS[1], 0, -1)) do redis.call('ZADD', KEYS[1], 'XX', int(t + grace), c) end
  return {'LEAD', int(gap), {}, {}, {}, {}, {}, {}}
end

local overdue, due, requeued, suspected, dead, lost, sums = {}, {}, {}, {}, {}, {}, {}
local saved = 0
for _, rid in ipairs(redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', int(t), 'LIMIT', 0, limit)) do
  local h = look_at(T, rid)
  if h[ST] and not terminal(h[ST]) then
    if h[ST] ~= 'RUNNING' then saved = saved + 1 end
    finish(T, rid, h, 'EXPIRED', '!deadline|the deadline passed before an answer was ready; nothing will be computed for it any more', sums)
    overdue[#overdue + 1] = rid
  else
    redis.call('ZREM', KEYS[2], rid)
  end
end
if saved > 0 then redis.call('HINCRBY', T .. ':stats', 'expire_saved_count', saved) end

for _, rid in ipairs(redis.call('ZRANGEBYSCORE', T .. ':delay', '-inf', int(t), 'LIMIT', 0, limit)) do
  redis.call('ZREM', T .. ':delay', rid)
  local h = redis.call('HMGET', T .. ':r:' .. rid, 'st', 'm', 'q')
  if h[1] == 'DELAYED' then
    enqueue(T, rid, lane_after(T, h[3]), cmsgpack.unpack(h[2])[2])
    due[#due + 1] = rid
  end
end

-- Whoever holds an entry has a lease: Redis gives entries to a blocked reader though it was given up, or never beat.
for k = 0, SUSPECTS do
  local consumers = redis.pcall('XINFO', 'CONSUMERS', T .. ':q:' .. k, GROUP)
  for _, c in ipairs(consumers.err and {} or consumers) do  -- name, NAME, pending, COUNT, ...
    if c[4] > 0 then redis.call('ZADD', KEYS[1], 'NX', int(t + grace), c[2]) end
  end
end

local function hand_on(lane, sid, c, delivered_us, blamed)
  local fields = entry_fields(lane, sid)
  redis.call('XACK', lane, GROUP, sid); redis.call('XDEL', lane, sid)
  if not fields then return end
  local rid = fields[2]
  local R, h = T .. ':r:' .. rid, look_at(T, rid)
  if not h[ST] or terminal(h[ST]) or h[Q] ~= lane or h[SID] ~= sid then return end
  -- Delivered by a blocking read to a worker that died before it started anything: this is when that was.
  redis.call('HSETNX', R, 'f', int(delivered_us))
  local ran = h[ST] == 'RUNNING' and h[OWN] == c and (not blamed or blamed[rid])
  local count, most = redis.call('HINCRBY', R, ran and 'cr' or 'lo', 1), ran and crashes_max or losses_max
  if count >= most then
    local verdict = ran and
      '!crashed|each of the ' .. count .. ' workers that ran it ended while it ran, the last time alone; it is kept as a dead letter'
      or '!crashed|' .. count .. ' workers that held it were lost; it is kept as a dead letter'
    bury(T, rid, ran and 'crashed' or 'lost', verdict)
    finish(T, rid, h, 'DEAD', verdict, sums)
    dead[#dead + 1] = rid
  else
    -- One of a batch ended its process: each runs alone now, so that the culprit takes nobody with it again.
    enqueue(T, rid, ran and T .. ':q:' .. SUSPECTS or lane_after(T, lane), fields)
    local list = ran and suspected or requeued
    list[#list + 1] = rid
  end
end

for _, c in ipairs(redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', int(t), 'LIMIT', 0, 8)) do
  -- What it was computing is under suspicion. If that is not known (it had no time to say) all it held is.
  local blamed, told = {}, false
  for rid in string.gmatch(redis.call('HGET', T .. ':run', c) or '', '%S+') do
    local h = redis.call('HMGET', T .. ':r:' .. rid, 'st', 'own')
    if h[1] == 'RUNNING' and h[2] == c then blamed[rid] = true; told = true end
  end
  local left = false
  for k = 0, SUSPECTS do
    local lane = T .. ':q:' .. k
    local pending = redis.pcall('XPENDING', lane, GROUP, '-', '+', limit, c)
    if pending.err then pending = {} end  -- no group (a wiped Redis): nothing is held
    if #pending >= limit then left = true end
    for _, e in ipairs(pending) do hand_on(lane, e[1], c, t - e[3] * 1000, told and blamed or nil) end
    -- Only an empty consumer may go: deleting one drops its pending entries silently.
    if #pending < limit then redis.pcall('XGROUP', 'DELCONSUMER', lane, GROUP, c) end
  end
  if not left then
    redis.call('ZREM', KEYS[1], c)
    redis.call('HDEL', T .. ':run', c)
    redis.call('HDEL', T .. ':pace', c)
    if redis.call('GET', T .. ':solo') == c then redis.call('DEL', T .. ':solo') end
    lost[#lost + 1] = c
  end
end
book(T, sums)
for k = 1, 3 do refill(T, k, 0) end
-- Nothing is live: nothing is counted. An operator's DEL may have left a remainder.
if redis.call('ZCARD', KEYS[2]) == 0 then redis.call('DEL', T .. ':c') end
return {'LEAD', '0', overdue, due, requeued, suspected, dead, lost}
