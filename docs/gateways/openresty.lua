-- OpenResty denies by the blocklist in Redis itself: access_by_lua_file /etc/openresty/penaltybox.lua;
-- Wanted: lua_shared_dict penaltybox 10m; lua-resty-redis (comes with OpenResty). See nginx.md.
-- IPv4 addresses, and one header's value if you name it. CIDR bans and IPv6 by /64 are what this does not do:
-- ask the decision service, or take nginx-list.conf, for these.
local redis = require "resty.redis"
local cjson = require "cjson.safe"

local PREFIX, HOST, PORT = "pbx", "127.0.0.1", 6379
local USER_HEADER = nil -- "X-User", if a gateway before this one sets it and removes what clients send
local REMEMBER_S = 1    -- an unban is seen this late
local DEADLINE_MS = 20

local function encoded(value)
  return (value:gsub("[^A-Za-z0-9%-%._~]", function(byte)
    return string.format("%%%02X", string.byte(byte))
  end))
end

local function look_up(subject)
  local known = ngx.shared.penaltybox:get(subject)
  if known ~= nil then
    return known
  end
  local client = redis:new()
  client:set_timeouts(DEADLINE_MS, DEADLINE_MS, DEADLINE_MS)
  local connected = client:connect(HOST, PORT)
  if not connected then
    return "" -- Redis is away: let the request through; return '{"until":null}' to refuse it
  end
  local value, failure = client:get(PREFIX .. ":{" .. subject .. "}:block")
  if failure then
    client:close()
    return ""
  end
  client:set_keepalive(10000, 100)
  if value == ngx.null then
    value = ""
  end
  ngx.shared.penaltybox:set(subject, value, REMEMBER_S)
  return value
end

local function deny(value)
  local block = cjson.decode(value)
  local ends = type(block) == "table" and block["until"] or nil
  if type(ends) ~= "number" then
    return ngx.exit(403)
  end
  ngx.header["Retry-After"] = math.max(1, math.ceil(ends / 1000 - ngx.now()))
  return ngx.exit(429)
end

local subjects = {}
if not ngx.var.remote_addr:find(":", 1, true) then
  subjects[#subjects + 1] = "ip:" .. ngx.var.remote_addr
end
local user = USER_HEADER and ngx.req.get_headers()[USER_HEADER]
if type(user) == "string" then
  subjects[#subjects + 1] = "user:" .. encoded(user)
end
for _, subject in ipairs(subjects) do
  local value = look_up(subject)
  if value ~= "" then
    return deny(value)
  end
end
