-- OpenResty, or nginx with its Lua module, denies by the blocklist in Redis itself:
--   http { lua_shared_dict penaltybox 10m; … access_by_lua_file /etc/nginx/penaltybox.lua; … }
-- It needs no other Lua library. Addresses, IPv6 by /64, and one header's value if you name it. Banned ranges (CIDR) are
-- what this does not do: ask the decision service, or take nginx-list.conf, for these. See nginx.md.
local PREFIX, HOST, PORT, PASSWORD = "pbx", "127.0.0.1", 6379, nil
local USER_HEADER = nil -- "X-User", if a gateway before this one sets it and removes what clients send
local REMEMBER_S = 1    -- an unban is seen this late
local DEADLINE_MS = 20
local WHEN_AWAY = ""    -- Redis is away: requests pass; '{"until":null}' refuses them

local function command(...)
  local parts = { "*" .. select("#", ...) }
  for _, part in ipairs({ ... }) do
    parts[#parts + 1] = "$" .. #part .. "\r\n" .. part
  end
  return table.concat(parts, "\r\n") .. "\r\n"
end

-- The value of a key, "" without one; nil when Redis does not answer as it should.
local function get(key)
  local client = ngx.socket.tcp()
  client:settimeouts(DEADLINE_MS, DEADLINE_MS, DEADLINE_MS)
  if not client:connect(HOST, PORT) then
    return nil
  end
  if PASSWORD and client:getreusedtimes() == 0 then
    client:send(command("AUTH", PASSWORD))
    client:receive()
  end
  client:send(command("GET", key))
  local length = tonumber((client:receive() or ""):match("^%$(%-?%d+)$"))
  local value = length == -1 and "" or length and client:receive(length)
  if not value or (length >= 0 and not client:receive(2)) then
    client:close()
    return nil
  end
  client:setkeepalive(10000, 100)
  return value
end

local function look_up(subject)
  local known = ngx.shared.penaltybox:get(subject)
  if known ~= nil then
    return known
  end
  local value = get(PREFIX .. ":{" .. subject .. "}:block")
  if value == nil then
    return WHEN_AWAY
  end
  ngx.shared.penaltybox:set(subject, value, REMEMBER_S)
  return value
end

local function deny(value)
  local ends = tonumber(value:match('"until"%s*:%s*(%d+)'))
  if not ends then
    return ngx.exit(403)
  end
  ngx.header["Retry-After"] = math.max(1, math.ceil(ends / 1000 - ngx.now()))
  return ngx.exit(429)
end

-- The subject of the connection's address: IPv4 also where it came as ::ffff:192.0.2.1, else the /64.
local function of_address(packed)
  if #packed == 16 and packed:sub(1, 12) == string.rep("\0", 10) .. "\255\255" then
    packed = packed:sub(13)
  end
  if #packed == 4 then
    return "ip:" .. table.concat({ packed:byte(1, 4) }, ".")
  end
  local groups, last = {}, 0
  for at = 1, 4 do
    local number = packed:byte(2 * at - 1) * 256 + packed:byte(2 * at)
    groups[at], last = string.format("%x", number), number > 0 and at or last
  end
  return "ip:" .. table.concat(groups, ":", 1, last) .. "::/64"
end

local function encoded(value)
  return (value:gsub("[^A-Za-z0-9%-%._~]", function(byte)
    return string.format("%%%02X", string.byte(byte))
  end))
end

local subjects = {}
if #ngx.var.binary_remote_addr % 4 == 0 then -- else it came through a Unix socket
  subjects[1] = of_address(ngx.var.binary_remote_addr)
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
