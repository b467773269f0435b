-- wrk: one mlp request of 64 floats as JSON. A reply other than 200 is counted and reported.
local values = {}
for i = 1, 64 do values[i] = string.format("%.3f", (i * 37 % 101) / 101 - 0.5) end
wrk.method = "POST"
wrk.path = "/v2/models/mlp/infer"
wrk.headers["Content-Type"] = "application/json"
wrk.body = '{"inputs":[{"name":"x","shape":[1,64],"datatype":"FP32","data":[' .. table.concat(values, ",") .. ']}]}'

local threads = {}
bad = 0

function setup(thread) table.insert(threads, thread) end
function response(status) if status ~= 200 then bad = bad + 1 end end

function done(summary, latency, requests)
  local failed = 0
  for _, thread in ipairs(threads) do failed = failed + thread:get("bad") end
  local e = summary.errors
  io.write(string.format('RESULT {"requests": %d, "seconds": %.3f, "p50_ms": %.3f, "p90_ms": %.3f, "p99_ms": %.3f, "max_ms": %.3f, "errors": %d}\n',
    summary.requests, summary.duration / 1e6, latency:percentile(50) / 1e3, latency:percentile(90) / 1e3,
    latency:percentile(99) / 1e3, latency.max / 1e3, failed + e.connect + e.read + e.write + e.timeout))
end
