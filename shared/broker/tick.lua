-- Housekeeping of one queue, by whoever leads: ends what is overdue, hands on what dead workers held.
-- KEYS  1 leases  2 deadlines  3 last tick  4 leader  5.. lanes (the first is the retry lane)
-- ARGV  1 group  2 record prefix  3 payload prefix  4 reply prefix  5 me  6 leader ttl ms  7 grace us  8 limit
--       9 max attempts
-- Returns FOLLOW, or LEAD and four numbers: overdue, requeued, dead, us that Redis stood still (0 mostly);
--   then the consumers whose lease ran out.
local group, prefix, payloads, replies, me = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]
local leader_ttl, grace, limit, attempts_max = ARGV[6], tonumber(ARGV[7]), tonumber(ARGV[8]), tonumber(ARGV[9])
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
  return {'LEAD', '0', '0', '0', int(gap)}
end

local overdue, requeued, dead, lost = 0, 0, 0, {}
local function finish(rid, R, h, status, verdict)  -- h: st, q, sid, gw
  redis.call('XACK', h[2], group, h[3]); redis.call('XDEL', h[2], h[3])
  redis.call('ZREM', KEYS[2], rid)
  redis.call('HSET', R, 'st', status)
  redis.call('SET', payloads .. rid, verdict, 'PX', math.max(1, redis.call('PTTL', R)))
  redis.call('XADD', replies .. h[4], 'NOMKSTREAM', '*', rid, verdict)
end

for _, rid in ipairs(redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', int(t), 'LIMIT', 0, limit)) do
  local R = prefix .. rid
  local h = redis.call('HMGET', R, 'st', 'q', 'sid', 'gw')
  if h[1] and not terminal(h[1]) then
    finish(rid, R, h, 'EXPIRED', '!deadline|the deadline passed before an answer was ready; nothing will be computed for it any more')
    overdue = overdue + 1
  else
    redis.call('ZREM', KEYS[2], rid)
  end
end

-- Whoever holds an entry has a lease: Redis gives entries to a blocked reader though it was given up, or never beat.
for k = 5, #KEYS do
  local consumers = redis.pcall('XINFO', 'CONSUMERS', KEYS[k], group)
  for _, c in ipairs(consumers.err and {} or consumers) do  -- name, NAME, pending, COUNT, ...
    if c[4] > 0 then redis.call('ZADD', KEYS[1], 'NX', int(t + grace), c[2]) end
  end
end

for _, c in ipairs(redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', int(t), 'LIMIT', 0, 8)) do
  local left = false
  for k = 5, #KEYS do
    local pending = redis.pcall('XPENDING', KEYS[k], group, '-', '+', limit, c)
    if pending.err then pending = {} end  -- no group (a wiped Redis): nothing is held
    if #pending >= limit then left = true end
    for _, e in ipairs(pending) do
      local entry = redis.call('XRANGE', KEYS[k], e[1], e[1])
      redis.call('XACK', KEYS[k], group, e[1]); redis.call('XDEL', KEYS[k], e[1])
      if #entry > 0 then
        local rid = entry[1][2][2]
        local R = prefix .. rid
        local h = redis.call('HMGET', R, 'st', 'q', 'sid', 'gw', 'a')
        if h[1] and not terminal(h[1]) and h[2] == KEYS[k] and h[3] == e[1] then
          if tonumber(h[5]) >= attempts_max then
            finish(rid, R, h, 'DEAD', '!crashed|each of its ' .. h[5] .. ' attempts was lost with the worker that ran it')
            dead = dead + 1
          else
            local sid = redis.call('XADD', KEYS[5], '*', unpack(entry[1][2]))  -- the message headers travel on
            redis.call('HSET', R, 'st', 'QUEUED', 'q', KEYS[5], 'sid', sid)
            -- Delivered by a blocking read to a worker that died before it started anything: this is when that was.
            redis.call('HSETNX', R, 'f', int(t - e[3] * 1000))
            redis.call('HDEL', R, 'own')
            requeued = requeued + 1
          end
        end
      end
    end
    -- Only an empty consumer may go: deleting one drops its pending entries silently.
    if #pending < limit then redis.pcall('XGROUP', 'DELCONSUMER', KEYS[k], group, c) end
  end
  if not left then redis.call('ZREM', KEYS[1], c); lost[#lost + 1] = c end
end
return {'LEAD', int(overdue), int(requeued), int(dead), '0', unpack(lost)}
