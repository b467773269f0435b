-- The leader looks for requests that fell between the chairs, which only an operator's hand or lost data can bring about.
-- KEYS  1 deadlines  ARGV  1 T  2 from which rank on  3 how many
-- Returns the next rank (0: all seen), then the ids that were enqueued again.
local T, from, limit = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
lift_oom(KEYS[1])
local mended = {}
local ids = redis.call('ZRANGE', KEYS[1], from, from + limit - 1)
for _, rid in ipairs(ids) do
  local R = T .. ':r:' .. rid
  local h = redis.call('HMGET', R, 'st', 'q', 'sid', 'tp', 'pr', 'tn')
  local adrift = false
  if h[1] == 'QUEUED' then
    adrift = not entry_fields(h[2], h[3])
  elseif h[1] == 'RUNNING' then
    local pending = redis.pcall('XPENDING', h[2], GROUP, h[3], h[3], 1)
    adrift = pending.err or #pending == 0
    if adrift then redis.call('XDEL', h[2], h[3]) end
  elseif h[1] == 'WAITING' then
    adrift = not redis.call('ZSCORE', T .. ':ring:' .. h[5], h[6])
    if adrift then redis.call('LREM', T .. ':w:' .. h[5] .. ':' .. h[6], 1, rid) end
  elseif h[1] == 'DELAYED' then
    adrift = not redis.call('ZSCORE', T .. ':delay', rid)
  end
  if adrift then
    -- The entry is gone, and most of the headers with it.
    enqueue(T, rid, T .. ':q:0', {'r', rid, 'v', SCHEMA, 'ct', CONTENT_TYPE, 'tp', h[4] or '', 'ts', '', 'g3', '0'})
    mended[#mended + 1] = rid
  end
end
return {#ids < limit and '0' or int(from + limit), mended}
