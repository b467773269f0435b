-- An operator throws dead letters away. KEYS 1 the dead letters 2 statistics. ARGV the entry ids. Returns how many there were.
local gone = 0
for _, id in ipairs(ARGV) do
  local entry = redis.call('XRANGE', KEYS[1], id, id)[1]
  if entry then
    redis.call('XDEL', KEYS[1], id)
    redis.call('HINCRBY', KEYS[2], 'dlq_bytes', -#entry[2][#entry[2]])
    gone = gone + 1
  end
end
return gone
