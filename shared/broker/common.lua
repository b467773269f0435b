-- Prepended to every script. Times are microseconds of Redis' own clock: no clock of another host takes part.
local function now_us() local t = redis.call('TIME'); return t[1] * 1000000 + t[2] end
local function int(n) return string.format('%.0f', n) end
local function terminal(st)
  return st == 'DONE' or st == 'FAILED' or st == 'CANCELLED' or st == 'EXPIRED' or st == 'DEAD'
end
local function lift_oom(key) redis.call('DEL', key .. ':_') end  -- a first write that is not deny-oom lets the rest pass
local function push(lists, key, value)
  local list = lists[key]
  if not list then list = {}; lists[key] = list end
  list[#list + 1] = value
end
local function sliced(list, call)  -- `unpack` takes some thousands of values; an even number keeps pairs together
  for i = 1, #list, 2000 do call(unpack(list, i, math.min(i + 1999, #list))) end
end
local function drop_entries(group, by_lane)
  for lane, ids in pairs(by_lane) do
    sliced(ids, function(...) redis.call('XACK', lane, group, ...); redis.call('XDEL', lane, ...) end)
  end
end
