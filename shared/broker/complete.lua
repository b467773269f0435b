-- A worker hands in the answers of a batch. Idempotent: the same attempt and status again answers OKDUP.
-- KEYS  1 deadlines
-- ARGV  1 T  2 inline bytes max  then 4 a request: id, attempt, status (DONE, FAILED), answer
-- Returns a status a request: OK, OKDUP, STALE (another attempt or verdict came first), GONE (no record).
local T, inline_max = ARGV[1], tonumber(ARGV[2])
lift_oom(KEYS[1])
local out, by_gateway, by_lane, done, sums = {}, {}, {}, {}, {}
local suspects = T .. ':q:' .. SUSPECTS
local suspected = false
for i = 3, #ARGV, 4 do
  local rid, attempt, status, answer = ARGV[i], ARGV[i + 1], ARGV[i + 2], ARGV[i + 3]
  local h = look_at(T, rid)
  if not h[ST] then
    out[#out + 1] = 'GONE'
  elseif terminal(h[ST]) then
    out[#out + 1] = (h[A] == attempt and h[ST] == status) and 'OKDUP' or 'STALE'
  elseif h[A] ~= attempt or h[ST] == 'DELAYED' then
    out[#out + 1] = 'STALE'
  else
    local R, P = T .. ':r:' .. rid, T .. ':p:' .. rid
    redis.call('HSET', R, 'st', status)
    -- The answer takes the payload's place.
    if h[AS] then
      redis.call('PEXPIRE', R, h[AS]); redis.call('SET', P, answer, 'PX', h[AS])
    else
      -- Without a payload (an operator's hand) there is no time to live to keep.
      if not redis.call('SET', P, answer, 'XX', 'KEEPTTL') then
        redis.call('SET', P, answer, 'PX', math.max(1, redis.call('PTTL', R)))
      end
    end
    push(by_lane, h[Q], h[SID])
    suspected = suspected or h[Q] == suspects
    local inline = #answer <= inline_max and answer or ''
    if string.find(h[GW], ',', 1, true) then
      each_gateway(h[GW], function(g) push(by_gateway, g, rid); push(by_gateway, g, inline) end)
    elseif h[GW] ~= '' then
      push(by_gateway, h[GW], rid); push(by_gateway, h[GW], inline)
    end
    if h[HOOK] then redis.call('XADD', T .. ':hooks', 'MAXLEN', '~', 100000, '*', 'r', rid) end
    untally(sums, h)
    done[#done + 1] = rid
    out[#out + 1] = 'OK'
  end
end
-- Acknowledged means deleted, so the stream's length is exactly what is queued and running.
drop_entries(by_lane)
sliced(done, function(...) redis.call('ZREM', KEYS[1], ...) end)
book(T, sums)
if suspected and redis.call('XLEN', suspects) == 0 then redis.call('DEL', T .. ':solo') end
for gateway, fields in pairs(by_gateway) do
  -- One entry rings for many answers.
  sliced(fields, function(...) redis.call('XADD', T .. ':g:' .. gateway, 'NOMKSTREAM', '*', ...) end)
end
return out
