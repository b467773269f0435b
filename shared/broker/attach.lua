-- A gateway asks for a request by its id, and (if it waits) to be rung at its end too. KEYS 1 deadlines
-- ARGV 1 T 2 id 3 gateway, or nothing to only look
-- Returns state (GONE without a record), answer (empty while there is none), how to render it, tenant, accepted at (us).
local T, rid, gateway = ARGV[1], ARGV[2], ARGV[3]
lift_oom(KEYS[1])
local R = T .. ':r:' .. rid
local h = redis.call('HMGET', R, 'st', 'ask', 'tn', 'enq', 'gw')
if not h[1] then return {'GONE', '', '', '', '0'} end
if terminal(h[1]) then return {h[1], redis.call('GET', T .. ':p:' .. rid) or '', h[2] or '', h[3], h[4]} end
if gateway ~= '' and not string.find(',' .. h[5] .. ',', ',' .. gateway .. ',', 1, true) then
  local gateways = {}
  each_gateway(h[5], function(g) gateways[#gateways + 1] = g end)
  if #gateways >= 4 then table.remove(gateways, 1) end  -- bounded; who was pushed out still finds the answer in the record
  gateways[#gateways + 1] = gateway
  redis.call('HSET', R, 'gw', table.concat(gateways, ','))
end
return {h[1], '', h[2] or '', h[3], h[4]}
