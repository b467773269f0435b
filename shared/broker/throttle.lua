-- A tenant's rate limit (GCRA): one string a tenant. KEYS 1 its key. ARGV 1 us between requests 2 burst 3 requests
-- Returns 0 when they may pass, else us until they could.
lift_oom(KEYS[1])  -- let accept be the one that refuses
local t, interval, n = now_us(), tonumber(ARGV[1]), tonumber(ARGV[3])
local tat = math.max(t, tonumber(redis.call('GET', KEYS[1]) or '0'))
local after = tat + interval * n
local allowed_at = after - interval * math.max(n, tonumber(ARGV[2]))
if t < allowed_at then return int(allowed_at - t) end
redis.call('SET', KEYS[1], int(after), 'PX', int((after - t) / 1000 + 1))
return '0'
