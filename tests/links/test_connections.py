"""From a URL to a Redis, without telling secrets."""

from __future__ import annotations

import asyncio
import ssl
import subprocess
from typing import TYPE_CHECKING, Any

import pytest

from penaltybox.contracts.errors import ConfigurationError, StoreUnavailable
from penaltybox.contracts.settings import Settings
from penaltybox.links.connections import endpoint_of, open_client, open_link, parse_endpoint
from penaltybox.sinks.redis_store import RedisSubjectStore
from penaltybox.sinks.subject_store import Written
from tests.redis_servers import BINARIES
from tests.sinks.stores.blobs import write

if TYPE_CHECKING:
    from pathlib import Path

SECRET = "hunter2"  # noqa: S105 - what must not be shown


@pytest.mark.parametrize(
    ("url", "topology", "hosts", "tls", "where"),
    [
        ("redis://h", "single", (("h", 6379),), False, "h:6379"),
        ("redis://h:1/3", "single", (("h", 1),), False, "h:1"),
        ("rediss://[::1]:7", "single", (("::1", 7),), True, "[::1]:7"),
        ("redis://[::1]", "single", (("::1", 6379),), False, "[::1]:6379"),
        ("unix:///run/redis.sock", "single", (), False, "/run/redis.sock"),
        ("redis+sentinel://a,b:2/m", "sentinel", (("a", 26379), ("b", 2)), False, "a:26379,b:2 ('m' of Sentinel)"),
        ("rediss+sentinel://a/m/2", "sentinel", (("a", 26379),), True, "a:26379 ('m' of Sentinel)"),
        ("redis+cluster://a:1,b", "cluster", (("a", 1), ("b", 6379)), False, "a:1,b:6379"),
        ("rediss+cluster://u:p@a:1", "cluster", (("a", 1),), True, "a:1"),
    ],
)
def test_urls(url: str, topology: str, hosts: tuple[tuple[str, int], ...], tls: bool, where: str) -> None:
    """Each form of the URL names its topology, hosts and TLS."""
    endpoint = parse_endpoint(url)
    assert (endpoint.topology, endpoint.hosts, endpoint.tls, endpoint.where) == (topology, hosts, tls, where)


def test_login_from_url_or_settings() -> None:
    """A login in the URL is percent-decoded and wins over the settings'."""
    endpoint = parse_endpoint("redis://al%40ice:p%3A%2Fw@h/2", username="bob", password=SECRET)
    assert (endpoint.username, endpoint.password, endpoint.database) == ("al@ice", "p:/w", 2)
    endpoint = parse_endpoint("redis://h", username="bob", password=SECRET)
    assert (endpoint.username, endpoint.password) == ("bob", SECRET)
    endpoint = endpoint_of(Settings(redis_url="redis://h:1", redis_password=SECRET, redis_timeout_ms=250))
    assert (endpoint.where, endpoint.password, endpoint.deadline_s) == ("h:1", SECRET, 0.25)


@pytest.mark.parametrize(
    ("url", "wanted"),
    [
        (f"http://u:{SECRET}@h", "scheme 'http'"),
        (f"redis://u:{SECRET}@h:port", "'h:port', wanted host:port"),
        (f"redis://u:{SECRET}@", "wanted host:port"),
        (f"redis://u:{SECRET}@h/one", "wanted a database number"),
        (f"redis+sentinel://u:{SECRET}@h", "no service name"),
        (f"redis+cluster://u:{SECRET}@h/1", "wanted none"),
    ],
)
def test_bad_urls(url: str, wanted: str) -> None:
    """A URL that cannot work is a configuration error that says what is wrong and repeats no password."""
    with pytest.raises(ConfigurationError, match=wanted) as caught:
        parse_endpoint(url)
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize("scheme", ["redis://", "redis+sentinel://", "redis+cluster://"])
async def test_no_secret_in_any_repr(scheme: str) -> None:
    """Neither endpoint nor link nor client nor an outage shows the password."""
    endpoint = parse_endpoint(f"{scheme}u:{SECRET}@127.0.0.1:1/{'m' if 'sentinel' in scheme else ''}", deadline_s=2)
    link, client = open_link(endpoint), open_client(endpoint)
    with pytest.raises(StoreUnavailable) as caught:
        await link.exchange([("PING",)])
    for shown in (endpoint, link, vars(link), client, caught.value, caught.value.__cause__):
        assert SECRET not in repr(shown)
    await link.close()
    await client.aclose()


async def test_clients_for_everything_else(redis_by_kind: dict[str, Any]) -> None:
    """An ordinary client reaches the same server."""
    endpoint = parse_endpoint(f"redis://127.0.0.1:{redis_by_kind[next(iter(BINARIES))].port}")
    client = open_client(endpoint)
    assert await client.ping()
    await client.aclose()
    for topology in ("sentinel", "cluster"):
        client = open_client(parse_endpoint(redis_by_kind[topology].url))
        await client.set("through:client", "1")
        assert await client.get("through:client") == b"1"
        await client.aclose()


def _certificates(folder: Path) -> None:
    """A CA, and one certificate for server and client alike, by the openssl program."""
    openssl = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    subprocess.run(
        [*openssl, "-days", "2", "-subj", "/CN=test CA", "-keyout", "ca.key", "-out", "ca.crt"],
        cwd=folder, check=True, capture_output=True,
    )  # fmt: skip
    subprocess.run(
        [*openssl, "-days", "2", "-subj", "/CN=localhost", "-keyout", "own.key", "-out", "own.crt",
         "-CA", "ca.crt", "-CAkey", "ca.key", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1",
         "-addext", "basicConstraints=critical,CA:FALSE"],
        cwd=folder, check=True, capture_output=True,
    )  # fmt: skip


async def _tls_in_front_of(port: int, folder: Path) -> asyncio.Server:
    """Terminates TLS and wants a client certificate, as a Redis with tls-auth-clients does."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(folder / "ca.crt"))
    context.load_cert_chain(folder / "own.crt", folder / "own.key")
    context.verify_mode = ssl.CERT_REQUIRED

    async def copy(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        try:
            while data := await source.read(1 << 16):
                sink.write(data)
                await sink.drain()
        except OSError:
            pass
        finally:
            sink.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        onward_reader, onward_writer = await asyncio.open_connection("127.0.0.1", port)
        await asyncio.gather(copy(reader, onward_writer), copy(onward_reader, writer))

    return await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)


async def test_tls(redis_by_kind: dict[str, Any], tmp_path: Path) -> None:
    """With CA and client certificate a TLS server is used; with a CA that doesn't know it, it is an outage."""
    _certificates(tmp_path)
    listener = await _tls_in_front_of(redis_by_kind[next(iter(BINARIES))].port, tmp_path)
    url = f"rediss://localhost:{listener.sockets[0].getsockname()[1]}"
    own = {"tls_cert": str(tmp_path / "own.crt"), "tls_key": str(tmp_path / "own.key")}
    store = RedisSubjectStore(open_link(parse_endpoint(url, tls_ca=str(tmp_path / "ca.crt"), **own)), prefix="tls")
    (written,) = await store.write([write("user:tls", nonce=1)])
    assert isinstance(written, Written)
    await store.close()
    stranger = open_link(parse_endpoint(url, **own))
    with pytest.raises(StoreUnavailable, match="certificate"):
        await stranger.exchange([("PING",)])
    await stranger.close()
    listener.close()
    await listener.wait_closed()
