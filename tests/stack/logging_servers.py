"""Programs with limits of their own that write the logs which `penaltybox ingest` reads."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, ClassVar

from tests.stack.enforcers import APACHE_MODULES
from tests.stack.gateway_servers import Gateway

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


class Logger(Gateway):
    """A program that refuses requests with 429, and writes an access log."""

    examples, quota_passes, when_down = (), False, 429
    form: ClassVar[str]
    zone: ClassVar[str] = "UTC"
    """Of the log's times, where they have no offset."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, 1)

    def addresses(self) -> Sequence[tuple[str, str]]:
        return ()

    @property
    def log_file(self) -> Path:
        return self.folder / "access.log"


class HaproxyLog(Logger):
    """Debian's HAProxy, with `option httplog` and captured headers."""

    program, form = "haproxy", "haproxy"

    @property
    def log_file(self) -> Path:
        return self.folder / "output.log"

    def command(self) -> list[str]:
        (self.folder / "haproxy.cfg").write_text(
            "global\n log stdout format raw local0 info\n"
            "defaults\n mode http\n log global\n option httplog\n"
            " timeout client 5s\n timeout server 5s\n timeout connect 5s\n"
            f"frontend shop\n bind 127.0.0.1:{self.port}\n"
            " capture request header User-Agent len 200\n capture request header Referer len 200\n"
            " capture cookie session len 200\n http-request deny deny_status 429\n"
        )
        return ["-db", "-f", str(self.folder / "haproxy.cfg")]


class ApacheLog(Logger):
    """Debian's Apache with the combined format, and a module that asks for a user."""

    program, form = "apache2", "apache"

    def command(self) -> list[str]:
        modules = ("mpm_event", "authz_core", "alias")
        frame = [
            f"ServerRoot {self.folder}",
            f"Listen 127.0.0.1:{self.port}",
            "ServerName localhost",
            f"PidFile {self.folder}/apache.pid",
            f"DefaultRuntimeDir {self.folder}",
            f"ErrorLog {self.folder}/error.log",
            *(f"LoadModule {name}_module {APACHE_MODULES}/mod_{name}.so" for name in modules),
            "User www-data" if os.geteuid() == 0 else "",
            'LogFormat "%h %l %u %t \\"%r\\" %>s %O \\"%{Referer}i\\" \\"%{User-Agent}i\\"" combined',
            f"CustomLog {self.folder}/access.log combined",
            "Redirect 429 /",
        ]
        (self.folder / "frame.conf").write_text("\n".join(frame) + "\n")
        return ["-f", str(self.folder / "frame.conf"), "-DFOREGROUND"]


class CaddyLog(Logger):
    """Caddy."""

    program, form = "caddy", "caddy"

    def command(self) -> list[str]:
        (self.folder / "Caddyfile").write_text(
            "{\n\tadmin off\n\tauto_https off\n}\n"
            f":{self.port} {{\n\tbind 127.0.0.1\n\tlog {{\n\t\toutput file {self.log_file}\n\t}}\n\trespond 429\n}}\n"
        )
        return ["run", "--adapter", "caddyfile", "--config", str(self.folder / "Caddyfile")]


class TraefikLog(Logger):
    """Traefik with its `rateLimit`, and its log in JSON."""

    program, form, layout = "traefik", "traefik", "json"

    def command(self) -> list[str]:
        static = {
            "global": {"checkNewVersion": False},
            "entryPoints": {"web": {"address": f"127.0.0.1:{self.port}"}},
            "providers": {"file": {"filename": str(self.folder / "routes.yaml")}},
            "accessLog": {"filePath": str(self.log_file), "format": self.layout},
        }
        limit = {"rateLimit": {"average": 1, "period": "1h", "burst": 1, "sourceCriterion": {"requestHost": True}}}
        shop = {"rule": "PathPrefix(`/`)", "entryPoints": ["web"], "middlewares": ["few"], "service": "shop"}
        back = {"loadBalancer": {"servers": [{"url": f"http://127.0.0.1:{self.application.server_port}"}]}}
        routes = {"http": {"routers": {"shop": shop}, "middlewares": {"few": limit}, "services": {"shop": back}}}
        for name, document in (("traefik.yaml", static), ("routes.yaml", routes)):
            (self.folder / name).write_text(json.dumps(document))  # JSON is YAML
        return ["--configfile", str(self.folder / "traefik.yaml")]


class TraefikCommonLog(TraefikLog):
    """Traefik with its log as text."""

    layout = "common"


class EnvoyLog(Logger):
    """Envoy with its local rate limit."""

    program, form = "envoy", "envoy"

    def command(self) -> list[str]:
        kind = "type.googleapis.com/envoy.extensions."
        log = {
            "@type": f"{kind}access_loggers.file.v3.FileAccessLog",
            "path": str(self.log_file),
            "log_format": {
                "json_format": {
                    "start_time": "%START_TIME%",
                    "method": "%REQ(:METHOD)%",
                    "path": "%REQ(X-ENVOY-ORIGINAL-PATH?:PATH)%",
                    "response_code": "%RESPONSE_CODE%",
                    "response_flags": "%RESPONSE_FLAGS%",
                    "response_code_details": "%RESPONSE_CODE_DETAILS%",
                    "downstream_remote_address": "%DOWNSTREAM_REMOTE_ADDRESS%",
                    "user_agent": "%REQ(USER-AGENT)%",
                    "x_forwarded_for": "%REQ(X-FORWARDED-FOR)%",
                    "requested_server_name": "%REQUESTED_SERVER_NAME%",
                }
            },
        }
        always = {"default_value": {"numerator": 100, "denominator": "HUNDRED"}}
        limit = {
            "@type": f"{kind}filters.http.local_ratelimit.v3.LocalRateLimit",
            "stat_prefix": "few",
            "token_bucket": {"max_tokens": 1, "tokens_per_fill": 1, "fill_interval": "3600s"},
            "filter_enabled": always,
            "filter_enforced": always,
        }
        everything = {"match": {"prefix": "/"}, "direct_response": {"status": 200}}
        manager = {
            "@type": f"{kind}filters.network.http_connection_manager.v3.HttpConnectionManager",
            "stat_prefix": "web",
            "use_remote_address": True,
            "access_log": [{"name": "file", "typed_config": log}],
            "http_filters": [
                {"name": "limit", "typed_config": limit},
                {"name": "router", "typed_config": {"@type": f"{kind}filters.http.router.v3.Router"}},
            ],
            "route_config": {"virtual_hosts": [{"name": "shop", "domains": ["*"], "routes": [everything]}]},
        }
        address = {"socket_address": {"address": "127.0.0.1", "port_value": self.port}}
        chain = {"filters": [{"name": "web", "typed_config": manager}]}
        document = {"static_resources": {"listeners": [{"name": "web", "address": address, "filter_chains": [chain]}]}}
        (self.folder / "envoy.yaml").write_text(json.dumps(document))
        options = ["--concurrency", "1", "--disable-hot-restart", "--log-level", "warn", "--file-flush-interval-msec"]
        return ["-c", str(self.folder / "envoy.yaml"), *options, "100"]


LOGGERS: tuple[type[Logger], ...] = (HaproxyLog, ApacheLog, CaddyLog, TraefikLog, TraefikCommonLog, EnvoyLog)
