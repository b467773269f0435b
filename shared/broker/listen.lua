-- A gateway keeps its reply stream alive. KEYS 1 reply stream. ARGV 1 ttl ms. Returns 1 when it had to be created.
local created = 0
lift_oom(KEYS[1])
if redis.call('EXISTS', KEYS[1]) == 0 then
  redis.call('XADD', KEYS[1], 'MAXLEN', 1, '*', 'hello', '')  -- completions only add to a stream that exists
  created = 1
end
redis.call('PEXPIRE', KEYS[1], ARGV[1])
return created
