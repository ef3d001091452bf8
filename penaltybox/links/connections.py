"""From a URL to a Redis: standalone, behind Sentinel, or a cluster; with ACL users and TLS.

=================================================  ===========================
``redis://host:6379/0``  ``rediss://host:6380``    one server, without and with TLS
``unix:///run/redis.sock``                         one server on this machine
``redis+sentinel://h1:26379,h2:26379/name``        the master that Sentinel calls ``name``
``redis+cluster://h1:6379,h2:6379``                a cluster; any of its nodes as seeds
=================================================  ===========================

``rediss+sentinel`` and ``rediss+cluster`` use TLS. ``user:password@`` may stand before the first host, percent-encoded.
"""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote, urlsplit

from redis.asyncio import Connection, ConnectionPool, Redis, RedisCluster, SSLConnection, UnixDomainSocketConnection
from redis.asyncio.cluster import ClusterNode
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import Sentinel, SentinelConnectionPool
from redis.backoff import NoBackoff
from redis.credentials import UsernamePasswordCredentialProvider

from penaltybox.contracts.errors import ConfigurationError
from penaltybox.links.cluster import ClusterLink
from penaltybox.links.exchange import Link, ServerLink
from penaltybox.links.multiplex import MultiplexLink

if TYPE_CHECKING:
    from penaltybox.contracts.settings import Settings

_PORTS: Final = {"single": 6379, "sentinel": 26379, "cluster": 6379}
_SCHEMES: Final = {
    "redis": ("single", False),
    "rediss": ("single", True),
    "unix": ("single", False),
    "redis+sentinel": ("sentinel", False),
    "rediss+sentinel": ("sentinel", True),
    "redis+cluster": ("cluster", False),
    "rediss+cluster": ("cluster", True),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """A Redis and how to log in; its repr and `where` show no secret. Made by `parse_endpoint`."""

    topology: str
    hosts: tuple[tuple[str, int], ...]
    path: str | None
    service: str | None
    database: int
    tls: bool
    username: str | None = field(default=None, repr=False)
    password: str | None = field(default=None, repr=False)
    sentinel_username: str | None = field(default=None, repr=False)
    sentinel_password: str | None = field(default=None, repr=False)
    tls_ca: str | None = None
    tls_cert: str | None = None
    tls_key: str | None = None
    deadline_s: float = 5.0
    connect_timeout_s: float = 2.0
    max_connections: int = 64

    @property
    def where(self) -> str:
        """Where it is, for messages."""
        if self.path:
            return self.path
        hosts = ",".join(_address(host, port) for host, port in self.hosts)
        return f"{hosts} ({self.service!r} of Sentinel)" if self.topology == "sentinel" else hosts


def parse_endpoint(
    url: str,
    *,
    username: str | None = None,
    password: str | None = None,
    sentinel_username: str | None = None,
    sentinel_password: str | None = None,
    tls_ca: str | None = None,
    tls_cert: str | None = None,
    tls_key: str | None = None,
    deadline_s: float = 5.0,
    connect_timeout_s: float = 2.0,
    max_connections: int = 64,
) -> Endpoint:
    """Read a Redis URL; what is in it wins over the keyword arguments.

    Args:
        url: see the module's table.
        username: ACL user; without one the password belongs to ``default``.
        password: never shown.
        sentinel_username: ACL user of the Sentinels, when they want one.
        sentinel_password: password of the Sentinels.
        tls_ca: file with the CAs to trust instead of the system's.
        tls_cert: client certificate.
        tls_key: its key.
        deadline_s: for one call, connecting included.
        connect_timeout_s: for opening one connection.
        max_connections: per server.

    Raises:
        ConfigurationError: without repeating the URL's secrets.
    """
    parts = urlsplit(url)
    if parts.scheme not in _SCHEMES:
        raise ConfigurationError(f"Redis URL: scheme {parts.scheme!r}, wanted one of {', '.join(sorted(_SCHEMES))}.")
    topology, tls = _SCHEMES[parts.scheme]
    login, _, addresses = parts.netloc.rpartition("@")
    user, _, secret = login.partition(":")
    path = [unquote(part) for part in parts.path.split("/") if part]
    service = path.pop(0) if topology == "sentinel" and path else None
    if topology == "sentinel" and not service:
        raise ConfigurationError("Redis URL: no service name; wanted redis+sentinel://host:port,host:port/name.")
    unix = parts.scheme == "unix"
    database = 0 if unix else _database(path, topology)
    return Endpoint(
        topology=topology,
        hosts=() if unix else _hosts(addresses, _PORTS[topology]),
        path=unquote(parts.path) if unix else None,
        service=service,
        database=database,
        tls=tls,
        username=unquote(user) or username,
        password=unquote(secret) or password,
        sentinel_username=sentinel_username,
        sentinel_password=sentinel_password,
        tls_ca=tls_ca,
        tls_cert=tls_cert,
        tls_key=tls_key,
        deadline_s=deadline_s,
        connect_timeout_s=connect_timeout_s,
        max_connections=max_connections,
    )


def endpoint_of(settings: Settings) -> Endpoint:
    """The Redis of these settings.

    Raises:
        ConfigurationError: see `parse_endpoint`.
    """
    deadline_s = settings.redis_timeout_ms / 1000
    return parse_endpoint(
        settings.redis_url,
        username=settings.redis_username or None,
        password=settings.redis_password or None,
        sentinel_username=settings.redis_sentinel_username or None,
        sentinel_password=settings.redis_sentinel_password or None,
        tls_ca=settings.redis_ca or None,
        tls_cert=settings.redis_certificate or None,
        tls_key=settings.redis_key or None,
        deadline_s=deadline_s,
        connect_timeout_s=deadline_s,
    )


def _hosts(addresses: str, default_port: int) -> tuple[tuple[str, int], ...]:
    hosts = []
    for address in addresses.split(","):
        host, colon, port = address.rpartition(":")
        if not colon or port.endswith("]"):
            host, port = address, str(default_port)
        host = host.removeprefix("[").removesuffix("]")
        if not host or not port.isdecimal() or not 0 < int(port) < 1 << 16:
            raise ConfigurationError(f"Redis URL: address {address!r}, wanted host:port.")
        hosts.append((host, int(port)))
    return tuple(hosts)


def _database(path: list[str], topology: str) -> int:
    if not path:
        return 0
    if topology == "cluster" or len(path) > 1 or not path[0].isdecimal():
        raise ConfigurationError(
            f"Redis URL: path {'/'.join(path)!r}, wanted {'none' if topology == 'cluster' else 'a database number'}."
        )
    return int(path[0])


def _address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _arguments(endpoint: Endpoint) -> dict[str, Any]:
    """Connection arguments: no timeout per read (links have a deadline per call), no retries of redis-py's own."""
    arguments: dict[str, Any] = {
        "credential_provider": _login(endpoint.username, endpoint.password),
        "socket_timeout": None,
        "socket_connect_timeout": endpoint.connect_timeout_s,
        "retry": Retry(NoBackoff(), 0),
        "protocol": 2,
        "client_name": "penaltybox",
    }
    if endpoint.tls:
        arguments |= {
            "ssl_ca_certs": endpoint.tls_ca,
            "ssl_certfile": endpoint.tls_cert,
            "ssl_keyfile": endpoint.tls_key,
            "ssl_cert_reqs": "required",
            "ssl_check_hostname": True,
        }
    return arguments


def _check_tls_files(endpoint: Endpoint) -> None:
    """A file that is not there would look like a server that is away, for redis-py reads it when it connects."""
    if not endpoint.tls:
        return
    try:
        context = ssl.create_default_context(cafile=endpoint.tls_ca)
        if endpoint.tls_cert:
            context.load_cert_chain(endpoint.tls_cert, endpoint.tls_key)
    except OSError as error:  # ssl.SSLError is one
        raise ConfigurationError(
            f"Redis' TLS files (PENALTYBOX_REDIS_CA, _CERTIFICATE, _KEY) cannot be read: {error}."
        ) from error


def _login(username: str | None, password: str | None) -> UsernamePasswordCredentialProvider | None:
    """As an object, because redis-py before 8 shows a plain password argument in the repr of a pool."""
    return UsernamePasswordCredentialProvider(username, password) if username or password else None


def _pool(endpoint: Endpoint, host: str = "", port: int = 0) -> ConnectionPool:
    arguments = _arguments(endpoint) | {"max_connections": endpoint.max_connections, "db": endpoint.database}
    if endpoint.path:
        return ConnectionPool(connection_class=UnixDomainSocketConnection, path=endpoint.path, **arguments)
    kind = SSLConnection if endpoint.tls else Connection
    return ConnectionPool(connection_class=kind, host=host, port=port, **arguments)


class _SentinelPool(SentinelConnectionPool):
    """Closes its connections to the Sentinels together with those to the master."""

    async def disconnect(self, inuse_connections: bool = True) -> None:  # noqa: FBT001, FBT002 - as in redis-py
        await super().disconnect(inuse_connections)
        if inuse_connections:
            for client in self.sentinel_manager.sentinels:
                await client.aclose()


def _sentinel_pool(endpoint: Endpoint) -> SentinelConnectionPool:
    arguments = _arguments(endpoint)
    own = arguments | {"credential_provider": _login(endpoint.sentinel_username, endpoint.sentinel_password)}
    own["socket_timeout"] = endpoint.connect_timeout_s
    own |= {"ssl": True} if endpoint.tls else {}
    sentinel = Sentinel(endpoint.hosts, sentinel_kwargs=own)  # type: ignore[no-untyped-call]
    arguments |= {"max_connections": endpoint.max_connections, "db": endpoint.database, "ssl": endpoint.tls}
    return _SentinelPool(endpoint.service, sentinel, **arguments)  # type: ignore[no-untyped-call]


def open_link(endpoint: Endpoint) -> Link:
    """The way that the stores here use: many connections. Nothing connects before the first call.

    Raises:
        ConfigurationError: files of certificates that cannot be read.
    """
    return _link(endpoint, ServerLink)


def open_multiplexed(endpoint: Endpoint) -> MultiplexLink | ClusterLink:
    """The way for many small calls with short deadlines: one connection per server. Nothing connects before a call."""
    link = _link(endpoint, MultiplexLink)
    assert not isinstance(link, ServerLink)  # noqa: S101 - for mypy
    return link


def _link(endpoint: Endpoint, kind: type[ServerLink | MultiplexLink]) -> ServerLink | MultiplexLink | ClusterLink:
    _check_tls_files(endpoint)
    deadline_s = endpoint.deadline_s
    if endpoint.topology == "cluster":
        return ClusterLink(
            endpoint.hosts,
            lambda host, port: kind(_pool(endpoint, host, port), _address(host, port), deadline_s),
            endpoint.where,
        )
    if endpoint.topology == "sentinel":
        return kind(_sentinel_pool(endpoint), endpoint.where, deadline_s)
    host, port = endpoint.hosts[0] if endpoint.hosts else ("", 0)
    return kind(_pool(endpoint, host, port), endpoint.where, deadline_s)


def open_client(endpoint: Endpoint) -> Redis | RedisCluster:
    """An ordinary redis-py client for what isn't a subject, e.g. a subscription; nothing connects before it is used."""
    _check_tls_files(endpoint)
    if endpoint.topology == "cluster":
        arguments = _arguments(endpoint) | {"socket_timeout": endpoint.deadline_s}
        seeds = [ClusterNode(host, port) for host, port in endpoint.hosts]
        return RedisCluster(startup_nodes=seeds, ssl=endpoint.tls, **arguments)
    if endpoint.topology == "sentinel":
        return Redis.from_pool(_sentinel_pool(endpoint))
    host, port = endpoint.hosts[0] if endpoint.hosts else ("", 0)
    return Redis.from_pool(_pool(endpoint, host, port))
