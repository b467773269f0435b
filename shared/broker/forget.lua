-- A gateway has the answers: their records and the read part of its reply stream can go.
-- KEYS  1 reply stream   ARGV  1 record prefix  2 last entry id read ('' = leave the stream), then ids
if ARGV[2] ~= '' then redis.call('XTRIM', KEYS[1], 'MINID', '=', ARGV[2]) end
local n = 0
for i = 3, #ARGV do
  local R = ARGV[1] .. ARGV[i]
  local st = redis.call('HGET', R, 'st')
  if st and terminal(st) then redis.call('UNLINK', R); n = n + 1 end
end
return n
