"""`penaltybox enforce …` beside a real program with the example configuration of docs/gateways."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Self
from urllib.parse import urlsplit

from penaltybox.cli.fleet import environment_of
from tests.stack.decision_service import ROOT, fetch
from tests.stack.gateway_servers import Gateway, Nginx
from tests.waiting import block_until

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from penaltybox.contracts.settings import Settings

APACHE_MODULES = "/usr/lib/apache2/modules"
LUA_MODULES = tuple(f"/usr/lib/nginx/modules/{name}.so" for name in ("ndk_http_module", "ngx_http_lua_module"))


class Haproxy(Gateway):
    """Debian's HAProxy."""

    program, examples, quota_passes, when_down = "haproxy", ("haproxy.cfg",), False, 200
    denies = 429
    within_s = 2.0

    def addresses(self) -> Sequence[tuple[str, str]]:
        (self.folder / "penaltybox.map").touch()
        return (
            ("bind :80", f"bind 127.0.0.1:{self.port}"),
            ("/etc/haproxy/penaltybox.map", str(self.list)),
            ("/run/haproxy/admin.sock", str(self.folder / "admin.sock")),
        )

    @property
    def list(self) -> Path:
        return self.folder / "penaltybox.map"

    def command(self) -> list[str]:
        return ["-db", "-f", str(self.folder / "haproxy.cfg")]

    def enforce(self) -> list[str]:
        return ["haproxy", str(self.list), "--socket", str(self.folder / "admin.sock")]

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(60)


class NginxList(Nginx):
    """Debian's nginx with a list."""

    examples = ("nginx-list.conf",)
    denies = 429
    within_s = 20.0  # it reloads, on a machine that may be busy

    def addresses(self) -> Sequence[tuple[str, str]]:
        self.list.touch()
        return (*super().addresses(), ("/etc/nginx/penaltybox.geo", str(self.list)))

    @property
    def list(self) -> Path:
        return self.folder / "penaltybox.geo"

    def command(self) -> list[str]:
        (self.folder / "nginx-list.conf").rename(self.folder / "nginx.conf")
        return super().command()

    def enforce(self) -> list[str]:
        reload = f"nginx -p {self.folder} -e stderr -c {self.folder}/frame.conf -s reload"
        return ["nginx", str(self.list), "--run", reload]


class NginxLua(Nginx):
    """Debian's nginx with its Lua module, as OpenResty has it."""

    examples = ("openresty.lua",)

    def __init__(self, folder: Path, redis: str, prefix: str, *changes: tuple[str, str]) -> None:
        port = str(urlsplit(redis).port)
        redis_is = ('"pbx", "127.0.0.1", 6379', f'"{prefix}", "127.0.0.1", {port}')
        patient = ("DEADLINE_MS = 20", "DEADLINE_MS = 5000")  # the machine may be busy
        super().__init__(folder, 1, redis_is, patient, *changes)

    def command(self) -> list[str]:
        site = [
            "lua_shared_dict penaltybox 1m;",
            f"server {{ listen 127.0.0.1:{self.port}; listen [::1]:{self.port};",
            f"access_by_lua_file {self.folder}/openresty.lua;",
            f"location / {{ proxy_pass http://127.0.0.1:{self.application.server_port}; }} }}",
        ]
        (self.folder / "nginx.conf").write_text("\n".join(site))
        arguments = super().command()
        frame = self.folder / "frame.conf"
        modules = [f"load_module {module};" for module in LUA_MODULES]
        frame.write_text("\n".join([*modules, frame.read_text()]))
        return arguments


class Apache(Gateway):
    """Debian's Apache as a proxy."""

    program, examples, quota_passes, when_down = "apache2", ("apache.conf",), False, 200
    denies = 403
    within_s = 20.0

    def addresses(self) -> Sequence[tuple[str, str]]:
        return (("/etc/apache2/penaltybox.conf", str(self.list)),)

    @property
    def list(self) -> Path:
        return self.folder / "penaltybox.conf"

    def command(self) -> list[str]:
        modules = ("mpm_event", "authz_core", "authz_host", "proxy", "proxy_http")
        frame = [
            f"ServerRoot {self.folder}",
            f"Listen 127.0.0.1:{self.port}",
            "ServerName localhost",
            f"PidFile {self.folder}/apache.pid",
            f"DefaultRuntimeDir {self.folder}",
            f"ErrorLog {self.folder}/error.log",
            *(f"LoadModule {name}_module {APACHE_MODULES}/mod_{name}.so" for name in modules),
            "User www-data" if os.geteuid() == 0 else "",
            f"ProxyPass / http://127.0.0.1:{self.application.server_port}/",
            f"Include {self.folder}/apache.conf",
        ]
        (self.folder / "frame.conf").write_text("\n".join(frame) + "\n")
        return ["-f", str(self.folder / "frame.conf"), "-DFOREGROUND"]

    def enforce(self) -> list[str]:
        return ["apache", str(self.list), "--run", f"apache2 -f {self.folder}/frame.conf -k graceful"]


PROGRAMS: tuple[type[Haproxy | NginxList | Apache], ...] = (Haproxy, NginxList, Apache)


class Enforcer:
    """A running `penaltybox enforce`."""

    def __init__(self, settings: Settings, folder: Path, *arguments: str) -> None:
        self._command = [sys.executable, "-m", "penaltybox", "enforce", *arguments]
        self._environment = {**os.environ, **environment_of(settings)}
        self._folder = folder

    def __enter__(self) -> Self:
        with (self._folder / "enforcer.log").open("ab") as output:
            self.process = subprocess.Popen(self._command, cwd=ROOT, env=self._environment, stderr=output)
        return self

    @property
    def log(self) -> str:
        return (self._folder / "enforcer.log").read_text()

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(60)

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()


def answers(gateway: Gateway, source: str, status: int, deadline_s: float = 60) -> None:
    """Waits until a client of this address gets this status."""
    block_until(lambda: fetch(gateway.port, source=source).status == status, deadline_s, f"{status} for {source}")
