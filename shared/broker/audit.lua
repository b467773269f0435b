-- The leader looks for requests that fell between the chairs, which only an operator's hand or lost data can bring about.
-- KEYS  1 deadlines  2 leases  ARGV  1 T  2 from which rank on  3 how many
-- Returns the next rank (0: all seen), then the ids that were enqueued again.
local T, from, limit = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
lift_oom(KEYS[1])
local mended, delivered = {}, {}

local function pending(lane, sid)
  local found = redis.pcall('XPENDING', lane, GROUP, sid, sid, 1)
  return not found.err and #found > 0
end
local function is_delivered(lane, sid)  -- the group has passed the entry by
  if not delivered[lane] then
    delivered[lane] = '0-0'
    local groups = redis.pcall('XINFO', 'GROUPS', lane)
    for _, g in ipairs(groups.err and {} or groups) do  -- name, NAME, consumers, N, pending, N, last-delivered-id, ID
      if g[2] == GROUP then delivered[lane] = g[8] end
    end
  end
  local ms, n = string.match(delivered[lane], '(%d+)-(%d+)')
  local its_ms, its_n = string.match(sid, '(%d+)-(%d+)')
  ms, its_ms = tonumber(ms), tonumber(its_ms)
  return its_ms < ms or its_ms == ms and tonumber(its_n) <= tonumber(n)
end
local function is_adrift(rid, h)  -- nothing leads to it
  local st, lane, sid = h[1], h[2], h[3]
  if st == 'QUEUED' then
    return not entry_fields(lane, sid) or is_delivered(lane, sid) and not pending(lane, sid)
  elseif st == 'RUNNING' then
    return not pending(lane, sid)
  elseif st == 'WAITING' then
    return not redis.call('ZSCORE', T .. ':ring:' .. h[5], h[6])
  elseif st == 'DELAYED' then
    return not redis.call('ZSCORE', T .. ':delay', rid)
  end
end

local ids = redis.call('ZRANGE', KEYS[1], from, from + limit - 1)
for _, rid in ipairs(ids) do
  local h = redis.call('HMGET', T .. ':r:' .. rid, 'st', 'q', 'sid', 'tp', 'pr', 'tn', 'm', 'w')
  if is_adrift(rid, h) then
    local lane, sid = h[2], h[3]
    local fields
    if h[7] then fields = cmsgpack.unpack(h[7])[2]
    elseif sid ~= '' then fields = entry_fields(lane, sid) end
    -- With the entry most of the headers are gone.
    fields = fields or {'r', rid, 'v', SCHEMA, 'ct', h[8] and PARCEL_TYPE or CONTENT_TYPE, 'tp', h[4] or '', 'ts', '', 'g3', '0'}
    if h[1] == 'WAITING' then redis.call('LREM', T .. ':w:' .. h[5] .. ':' .. h[6], 1, rid)
    elseif h[1] ~= 'DELAYED' then redis.pcall('XACK', lane, GROUP, sid); redis.call('XDEL', lane, sid) end
    enqueue(T, rid, lane_after(T, lane), fields)
    mended[#mended + 1] = rid
  end
end
if from == 0 then  -- what a worker said of itself after it had been given up, and before it ended
  for _, hash in ipairs({T .. ':run', T .. ':pace'}) do
    for _, consumer in ipairs(redis.call('HKEYS', hash)) do
      if not redis.call('ZSCORE', KEYS[2], consumer) then redis.call('HDEL', hash, consumer) end
    end
  end
end
return {#ids < limit and '0' or int(from + limit), mended}
