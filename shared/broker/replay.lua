-- An operator runs a dead letter again, alone if so wished, as a job that anyone may ask for by its old id.
-- KEYS  1 deadlines  ARGV  1 T  2 entry id  3 budget us  4 result ttl ms  5 lane (retry or suspects)
--       6 how to render the result of what was no job
-- Returns OK and the id, LIVE and the id (it is in the queue already), or GONE (no such letter).
local T = ARGV[1]
local entry = redis.call('XRANGE', T .. ':dlq', ARGV[2], ARGV[2])[1]
if not entry then return {'GONE', ''} end
local f = {}
for i = 1, #entry[2], 2 do f[entry[2][i]] = entry[2][i + 1] end
local rid = f.r
local R, st = T .. ':r:' .. rid, redis.call('HGET', T .. ':r:' .. rid, 'st')
if st and not terminal(st) then return {'LIVE', rid} end
local t = now_us()
local ttl = int(tonumber(ARGV[3]) / 1000 + tonumber(ARGV[4]))
redis.call('UNLINK', R)
redis.call('HSET', R, 'a', f.a, 'enq', int(t), 'dl', int(t + tonumber(ARGV[3])), 'gw', '', 'tn', f.tn, 'pr', f.pr,
  'n', #f.p, 'tp', f.tp, 'as', ARGV[4], 'ask', f.ask ~= '' and f.ask or ARGV[6])
if f.hook and f.hook ~= '' then redis.call('HSET', R, 'hook', f.hook) end
enqueue(T, rid, T .. ':q:' .. ARGV[5], {'r', rid, 'v', SCHEMA, 'ct', CONTENT_TYPE, 'tp', f.tp, 'ts', '', 'g3', '0'})
redis.call('PEXPIRE', R, ttl)
redis.call('SET', T .. ':p:' .. rid, f.p, 'PX', ttl)
redis.call('ZADD', KEYS[1], int(t + tonumber(ARGV[3])), rid)
redis.call('XDEL', T .. ':dlq', ARGV[2])
redis.call('HINCRBY', T .. ':stats', 'dlq_bytes', -#f.p)
local sums = {}
tally(sums, f.pr, f.tn, 1, #f.p)
book(T, sums)
return {'OK', rid}
