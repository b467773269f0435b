-- A worker hands back requests it has not computed: at once, and nothing is counted against them.
-- KEYS  1 leases  ARGV  1 T  2 consumer  then 2 a request: id, attempt
-- Returns how many went back; the others are not this worker's any more.
local T, consumer = ARGV[1], ARGV[2]
lift_oom(KEYS[1])
local released = 0
for i = 3, #ARGV, 2 do
  local rid = ARGV[i]
  local h = look_at(T, rid)
  if h[ST] == 'RUNNING' and h[A] == ARGV[i + 1] and h[OWN] == consumer then
    local fields = entry_fields(h[Q], h[SID])
    if fields then
      unqueue(T, rid, h)
      enqueue(T, rid, lane_after(T, h[Q]), fields)
      released = released + 1
    end
  end
end
return released
