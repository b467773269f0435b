-- A gateway hands over requests. Idempotent: a record that exists answers DUP.
-- KEYS  1 lane  2 deadlines
-- ARGV  1 record prefix  2 payload prefix  3 gateway  4 queue max  5 extra ttl ms
--       then 8 a request: id, budget us, payload, schema, content type, traceparent, tracestate, handed over ns
-- Returns a pair a request: status (OK, DUP, FULL, OOM), then entry id, state, length or nothing.
local prefix, payloads, gateway, queue_max, extra = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4]), tonumber(ARGV[5])
local t, out, deadlines = now_us(), {}, {}
local enq = int(t)
local length = redis.call('XLEN', KEYS[1])
local refused = nil
for i = 6, #ARGV, 8 do
  local rid, R = ARGV[i], prefix .. ARGV[i]
  local st = redis.call('HGET', R, 'st')
  if st then
    out[#out + 1] = 'DUP'; out[#out + 1] = st
  elseif refused then
    out[#out + 1] = refused; out[#out + 1] = ''
  elseif length >= queue_max then
    out[#out + 1] = 'FULL'; out[#out + 1] = int(length)
  else
    -- The first write is a deny-oom one, so a full Redis refuses cleanly, and only new work.
    local sid = redis.pcall('XADD', KEYS[1], '*', 'r', rid, 'v', ARGV[i + 3], 'ct', ARGV[i + 4],
      'tp', ARGV[i + 5], 'ts', ARGV[i + 6], 'g3', ARGV[i + 7])
    if type(sid) == 'table' then
      if not string.find(sid.err, 'OOM', 1, true) then return redis.error_reply(sid.err) end
      refused = 'OOM'
      out[#out + 1] = refused; out[#out + 1] = ''
    else
      local budget = tonumber(ARGV[i + 1])
      local deadline, ttl = int(t + budget), int(budget / 1000 + extra)
      -- The payload has a key of its own: a hash of short values only stays compact, and is written in half the time.
      redis.call('HSET', R, 'st', 'QUEUED', 'q', KEYS[1], 'sid', sid, 'a', '0', 'enq', enq, 'dl', deadline, 'gw', gateway)
      redis.call('PEXPIRE', R, ttl)
      redis.call('SET', payloads .. rid, ARGV[i + 2], 'PX', ttl)
      deadlines[#deadlines + 1] = deadline; deadlines[#deadlines + 1] = rid
      length = length + 1
      out[#out + 1] = 'OK'; out[#out + 1] = sid
    end
  end
end
if #deadlines > 0 then redis.call('ZADD', KEYS[2], unpack(deadlines)) end
return out
