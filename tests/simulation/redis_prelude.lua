-- What Redis puts around a script: the sandbox, `redis.*`, and the script's result as a reply.
-- Called once, with the Python functions. Returns compile(text), run(script, keys, argv, sha).
local dispatch, pack, unpack_message, sha1hex = ...
local loadstring, setfenv, xpcall, type, rawset, error, concat, format, gsub =
  loadstring, setfenv, xpcall, type, rawset, error, table.concat, string.format, string.gsub
local getinfo = debug.getinfo

local redis = {LOG_DEBUG = 0, LOG_VERBOSE = 1, LOG_NOTICE = 2, LOG_WARNING = 3}
redis.pcall = dispatch
function redis.call(...)
  local reply = dispatch(...)
  if type(reply) == 'table' and reply.err then error(reply.err, 0) end
  return reply
end
function redis.error_reply(text) return {err = text} end
function redis.status_reply(text) return {ok = text} end
function redis.replicate_commands() return true end
function redis.log() end
redis.sha1hex = sha1hex

local env = {
  redis = redis, cmsgpack = {pack = pack, unpack = unpack_message},
  assert = assert, error = error, getmetatable = getmetatable, ipairs = ipairs, math = math, next = next, pairs = pairs,
  pcall = pcall, rawequal = rawequal, rawget = rawget, rawset = rawset, select = select, setmetatable = setmetatable,
  string = string, table = table, tonumber = tonumber, tostring = tostring, type = type, unpack = unpack, xpcall = xpcall,
  _VERSION = _VERSION,
}
env._G = env
setmetatable(env, {
  __index = function(_, name) error("Script attempted to access nonexistent global variable '" .. tostring(name) .. "'", 2) end,
  __newindex = function() error('Attempt to modify a readonly table', 2) end,
})

local function where(text)
  if type(text) ~= 'string' then return text end
  for level = 2, 6 do
    local i = getinfo(level, 'Sl')
    if not i then break end
    if i.what ~= 'C' and i.source == '@user_script' then return '@user_script:' .. i.currentline .. ': ' .. text end
  end
  return text
end

local out, n
local function render(v)
  local kind = type(v)
  if kind == 'string' then
    n = n + 1; out[n] = '$' .. #v .. '\r\n' .. v .. '\r\n'
  elseif kind == 'number' then
    n = n + 1; out[n] = format(':%d\r\n', v)
  elseif kind == 'boolean' then
    n = n + 1; out[n] = v and ':1\r\n' or '$-1\r\n'
  elseif kind == 'table' then
    if type(v.err) == 'string' then
      n = n + 1; out[n] = '-' .. gsub(v.err, '[\r\n]', ' ') .. '\r\n'
    elseif type(v.ok) == 'string' then
      n = n + 1; out[n] = '+' .. gsub(v.ok, '[\r\n]', ' ') .. '\r\n'
    else
      local length = 0
      while v[length + 1] ~= nil do length = length + 1 end
      n = n + 1; out[n] = '*' .. length .. '\r\n'
      for i = 1, length do render(v[i]) end
    end
  else
    n = n + 1; out[n] = '$-1\r\n'
  end
end

local function compile(text)
  local script, problem = loadstring(text, '@user_script')
  if not script then return problem end
  return setfenv(script, env)
end

local function run(script, keys, argv, sha)
  rawset(env, 'KEYS', keys)
  rawset(env, 'ARGV', argv)
  local ok, result = xpcall(script, where)
  out, n = {}, 0
  if ok then
    render(result)
  else
    render({err = 'ERR Error running script (call to f_' .. sha .. '): ' .. tostring(result)})
  end
  return concat(out)
end

return compile, run
