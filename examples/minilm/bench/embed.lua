-- What wrk sends: the bodies in the file of its first argument, a line each, in turn. At the end it prints its figures as one line of JSON.

local bodies = {}

function init(arguments)
  for line in io.lines(arguments[1]) do
    bodies[#bodies + 1] = line
  end
end

local next = 0

function request()
  next = next % #bodies + 1
  return wrk.format("POST", "/embed", { ["Content-Type"] = "application/json" }, bodies[next])
end

function done(summary, latency, requests)
  local errors = summary.errors
  print(string.format(
    '{"requests": %d, "seconds": %.6f, "p50_ms": %.3f, "p99_ms": %.3f, "refused": %d, "broken": %d}',
    summary.requests, summary.duration / 1e6, latency:percentile(50) / 1e3, latency:percentile(99) / 1e3,
    errors.status, errors.connect + errors.read + errors.write + errors.timeout))
end
