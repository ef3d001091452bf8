"""Gateways with the example configurations of docs/gateways, on free ports, an application behind them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
from http.client import HTTPException
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Self

from tests.ports import free_port
from tests.stack.decision_service import fetch
from tests.waiting import block_until

if TYPE_CHECKING:
    from collections.abc import Sequence

EXAMPLES = Path(__file__).parent.parent.parent / "docs" / "gateways"


class Application(ThreadingHTTPServer):
    """Answers 200 with the request that reached it (or the status that `/status/…` names)."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Echo)
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def close(self) -> None:
        self.shutdown()
        self.server_close()


class _Echo(BaseHTTPRequestHandler):
    def _answer(self) -> None:
        length = int(self.headers.get("content-length", 0))
        body = (
            f"{self.command} {self.path} {self.headers.get('x-penaltybox-action')} {self.rfile.read(length).decode()}"
        )
        self.send_response(int(self.path.removeprefix("/status/")) if self.path.startswith("/status/") else 200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body.encode())

    do_GET = do_POST = _answer  # noqa: N815 - the library's names

    def log_message(self, *_: object) -> None:
        """Nothing."""


class Gateway:
    """A gateway in front of an application and a decision service.

    Args:
        folder: for everything that it writes; made.
        service: port of the decision service.
        changes: (text of the example, what stands there instead).
    """

    program: ClassVar[str]
    examples: ClassVar[tuple[str, ...]]
    quota_passes: ClassVar[bool]
    """Whether the client sees its quota on the application's answers."""
    when_down: ClassVar[int]
    """What a client gets, with the example as it is, while the service is down."""

    def __init__(self, folder: Path, service: int, *changes: tuple[str, str]) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.port, self.folder, self.application = free_port(), folder, Application()
        own = self.addresses()
        for name in self.examples:
            text = (EXAMPLES / name).read_text()
            for old, new in (
                *((old, new) for old, new in own if old in text),
                *changes,
                ("127.0.0.1:8118", f"127.0.0.1:{service}"),
                ("127.0.0.1:8080", f"127.0.0.1:{self.application.server_port}"),
                ("port_value: 8118", f"port_value: {service}"),
                ("port_value: 8080", f"port_value: {self.application.server_port}"),
            ):
                text = text.replace(old, new)
            (folder / name).write_text(text)

    def addresses(self) -> Sequence[tuple[str, str]]:
        """What the example says about where the gateway listens, and what stands there here."""
        raise NotImplementedError

    def command(self) -> list[str]:
        """Arguments of the program."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        beside = Path(sys.executable).parent / self.program  # from a wheel, of the version that is locked
        program = str(beside) if beside.exists() else shutil.which(self.program)
        assert program is not None, self.program
        with (self.folder / "output.log").open("wb") as output:
            self.process = subprocess.Popen(
                [program, *self.command()],
                cwd=self.folder,
                env={**os.environ, **dict.fromkeys(("HOME", "XDG_DATA_HOME", "XDG_CONFIG_HOME"), str(self.folder))},
                stdout=output,
                stderr=output,
            )
        block_until(self._listens, 20, what=self.program)
        return self

    def _listens(self) -> bool:
        assert self.process.poll() is None, self.log
        try:
            return fetch(self.port, "/status/202", source="127.0.0.99").status != 404  # Traefik: no routes yet
        except (OSError, HTTPException):  # a port that nobody has may connect to itself
            return False

    @property
    def log(self) -> str:
        """What it wrote."""
        return (self.folder / "output.log").read_text()

    def __exit__(self, *_: object) -> None:
        self.process.terminate()
        self.process.wait(20)
        self.application.close()


class Nginx(Gateway):
    """Debian's nginx; the example is what /etc/nginx/conf.d holds."""

    program, examples, quota_passes, when_down = "nginx", ("nginx.conf",), True, 200

    def addresses(self) -> Sequence[tuple[str, str]]:
        return (
            ("listen 80;", f"listen 127.0.0.1:{self.port};"),
            ("listen [::]:80;", f"listen [::1]:{self.port};"),
        )

    def command(self) -> list[str]:
        parts = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
        frame = [
            "user root;" if os.geteuid() == 0 else "",  # else its worker could not write into our folder
            "daemon off; worker_processes 1; pid nginx.pid; error_log stderr;",
            "events { worker_connections 256; }",
            "http { access_log off;",
            *(f"{part}_temp_path {part};" for part in parts),
            f"include {self.folder}/nginx.conf; }}",
        ]
        (self.folder / "frame.conf").write_text("\n".join(frame))
        return ["-p", str(self.folder), "-e", "stderr", "-c", str(self.folder / "frame.conf")]


class Caddy(Gateway):
    """Caddy; fails closed."""

    program, examples, quota_passes, when_down = "caddy", ("Caddyfile",), False, 502

    def addresses(self) -> Sequence[tuple[str, str]]:
        options = "{\n\tadmin off\n\tauto_https off\n}\n"
        return ((":80 {", f"{options}:{self.port} {{\n\tbind 127.0.0.1 [::1]"),)

    def command(self) -> list[str]:
        return ["run", "--adapter", "caddyfile", "--config", str(self.folder / "Caddyfile")]


class Traefik(Gateway):
    """Traefik; fails closed."""

    program, examples, quota_passes, when_down = "traefik", ("traefik.yaml", "traefik-routes.yaml"), False, 500

    def addresses(self) -> Sequence[tuple[str, str]]:
        return (
            ('address: ":80"', f'address: "127.0.0.1:{self.port}"'),
            (
                "providers:",
                f'  web6:\n    address: "[::1]:{self.port}"\nglobal: {{checkNewVersion: false}}\nproviders:',
            ),
            ("entryPoints: [web]", "entryPoints: [web, web6]"),
            ("/etc/traefik/traefik-routes.yaml", str(self.folder / "traefik-routes.yaml")),
        )

    def command(self) -> list[str]:
        return ["--configfile", str(self.folder / "traefik.yaml")]


class Envoy(Gateway):
    """Envoy."""

    program, examples, quota_passes, when_down = "envoy", ("envoy.yaml",), True, 200

    def addresses(self) -> Sequence[tuple[str, str]]:
        here = '{{ socket_address: {{ address: "{0}", port_value: {1} }} }}'
        v4, v6 = here.format("127.0.0.1", self.port), here.format("::1", self.port)
        old = 'address:\n        socket_address: { address: "::", ipv4_compat: true, port_value: 80 }'
        return ((old, f"address: {v4}\n      additional_addresses: [{{ address: {v6} }}]"),)

    def command(self) -> list[str]:
        options = ["--concurrency", "1", "--disable-hot-restart", "--log-level", "warn"]
        return ["-c", str(self.folder / "envoy.yaml"), *options]


GATEWAYS: tuple[type[Gateway], ...] = (Nginx, Caddy, Traefik, Envoy)
