-- Prepended to every script. Times are microseconds of Redis' own clock: no clock of another host takes part.
local function now_us() local t = redis.call('TIME'); return t[1] * 1000000 + t[2] end
local function int(n) return string.format('%.0f', n) end
local function terminal(st)
  return st == 'DONE' or st == 'FAILED' or st == 'CANCELLED' or st == 'EXPIRED' or st == 'DEAD'
end
local function lift_oom(key) redis.call('DEL', key .. ':_') end  -- a first write that is not deny-oom lets the rest pass
