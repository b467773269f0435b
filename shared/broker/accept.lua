-- A gateway hands over requests. Idempotent: a record that exists answers DUP.
-- KEYS  1 lane  2 deadlines
-- ARGV  1 record prefix  2 gateway  3 queue max  4 max attempts
--       then 8 a request: id, budget us, payload, schema, content type, traceparent, tracestate, handed over ns
-- Returns a pair a request: status (OK, DUP, FULL, OOM), then entry id, state, length or nothing.
local prefix, gateway, queue_max, attempts = ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[4]
local t, out = now_us(), {}
local length = redis.call('XLEN', KEYS[1])
local refused = nil
for i = 5, #ARGV, 8 do
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
      local deadline = int(t + tonumber(ARGV[i + 1]))
      redis.call('HSET', R, 'st', 'QUEUED', 'q', KEYS[1], 'sid', sid, 'a', '0', 'enq', int(t), 'dl', deadline,
        'gw', gateway, 'ma', attempts, 'v', ARGV[i + 3], 'ct', ARGV[i + 4], 'tp', ARGV[i + 5], 'ts', ARGV[i + 6],
        'g3', ARGV[i + 7], 'p', ARGV[i + 2])
      -- A record nobody finishes (its deadline entry lost with a partial restore) must still go one day.
      redis.call('PEXPIRE', R, int(tonumber(ARGV[i + 1]) / 1000 + 86400000))
      redis.call('ZADD', KEYS[2], deadline, rid)
      length = length + 1
      out[#out + 1] = 'OK'; out[#out + 1] = sid
    end
  end
end
return out
