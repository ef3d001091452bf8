"""From a URL to a Redis, without telling secrets."""

from __future__ import annotations

import ssl
from typing import TYPE_CHECKING, Any

import pytest

from penaltybox.contracts.errors import ConfigurationError, StoreUnavailable
from penaltybox.contracts.settings import Settings
from penaltybox.links.connections import endpoint_of, open_client, open_link, parse_endpoint
from penaltybox.sinks.redis_store import RedisSubjectStore
from penaltybox.sinks.subject_store import Written
from tests.redis_servers import BINARIES, CLUSTERING, SentinelTrio
from tests.sinks.stores.blobs import write
from tests.tls import make_certificates, start_tls

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


async def test_tls(redis_by_kind: dict[str, Any], tmp_path: Path) -> None:
    """With CA and client certificate a TLS server is used; with a CA that doesn't know it, it is an outage."""
    make_certificates(tmp_path)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(tmp_path / "ca.crt"))
    context.load_cert_chain(tmp_path / "own.crt", tmp_path / "own.key")
    context.verify_mode = ssl.CERT_REQUIRED
    listener = await start_tls(redis_by_kind[next(iter(BINARIES))].port, context)
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


async def test_sentinels_with_a_login_of_their_own(tmp_path: Path) -> None:
    """The Sentinels' user and password come from the settings; without them the master is not found."""
    trio = SentinelTrio(str(CLUSTERING), tmp_path)
    try:
        trio.sentinel.call("ACL", "SETUSER", "watcher", "on", f">{SECRET}", "allcommands", "allchannels")
        trio.sentinel.call("ACL", "SETUSER", "default", "off")
        known = Settings(redis_url=trio.url, redis_sentinel_username="watcher", redis_sentinel_password=SECRET)
        link = open_link(endpoint_of(known))
        assert await link.exchange([("PING",)]) == [b"PONG"]
        await link.close()
        assert SECRET not in repr(known)
        stranger = open_link(endpoint_of(Settings(redis_url=trio.url, redis_timeout_ms=500)))
        with pytest.raises(StoreUnavailable):
            await stranger.exchange([("PING",)])
        await stranger.close()
    finally:
        trio.kill()


@pytest.mark.parametrize(
    "kind", ["rediss://localhost:1", "rediss+sentinel://localhost:1/m", "rediss+cluster://localhost:1"]
)
def test_certificates_that_are_not_there_are_no_outage(kind: str, tmp_path: Path) -> None:
    """A wrong path to a CA, a certificate or a key is a sentence at once: nobody waits for a server that is there."""
    (tmp_path / "empty").write_text("")
    for wrong in ({"tls_ca": "/absent"}, {"tls_cert": "/absent"}, {"tls_cert": str(tmp_path / "empty")}):
        for opening in (open_link, open_client):
            with pytest.raises(ConfigurationError, match="PENALTYBOX_REDIS_CA"):
                opening(parse_endpoint(kind, **wrong))  # type: ignore[arg-type]
