"""All settings, one object: environment prefix ``PENALTYBOX_``, ``.env`` read, secrets masked when printed."""

from __future__ import annotations

from difflib import get_close_matches
from ipaddress import ip_network
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal
from urllib.parse import urlsplit, urlunsplit

import msgspec
from msgspec import Meta

from penaltybox.contracts.errors import ConfigurationError, cause

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

PREFIX: Final = "PENALTYBOX_"
_SECRETS: Final = frozenset(
    (
        *("kafka_password", "redis_password", "redis_sentinel_password", "clickhouse_password"),
        *("hash_key", "serve_secret", "console_token", "alert_webhook_secret"),
        "alert_webhook_url",  # chat services put the key into the path
    )
)
_URLS: Final = frozenset({"redis_url", "clickhouse_url"})

Positive = Annotated[int, Meta(ge=1)]
HeaderName = Annotated[
    str,
    Meta(pattern=r"^[A-Za-z0-9-]{0,64}$", description="a header name: letters, digits and -, at most 64, or nothing"),
]
_LISTS: Final = frozenset({"hashed_dimensions", "trusted_proxies", "alert_rungs", "alert_rules", "console_names"})


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """Where things are and how much of them; read with `read_settings`. docs/settings.md describes every field."""

    kafka: str = "127.0.0.1:9092"
    kafka_security_protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"] = "PLAINTEXT"
    kafka_sasl_mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"] = "PLAIN"
    kafka_username: str = ""
    kafka_password: str = ""
    kafka_ca: str = ""
    kafka_certificate: str = ""
    kafka_key: str = ""
    kafka_session_timeout_ms: Annotated[int, Meta(ge=1000)] = 6000
    kafka_partitions: Positive = 8
    kafka_replication: Positive = 1
    topic_prefix: Annotated[
        str, Meta(pattern=r"^[A-Za-z0-9._-]{1,80}$", description="letters, digits, dot, _ and -, 1 to 80")
    ] = "penaltybox"
    decisions_retention: str = "7d"
    outcomes_retention: str = "30d"
    penalties_retention: str = "90d"
    dead_letters_retention: str = "7d"

    redis_url: str = "redis://127.0.0.1:6379/0"
    redis_username: str = ""
    redis_password: str = ""
    redis_sentinel_username: str = ""
    redis_sentinel_password: str = ""
    redis_ca: str = ""
    redis_certificate: str = ""
    redis_key: str = ""
    redis_prefix: Annotated[
        str, Meta(pattern=r"^[A-Za-z0-9._-]{1,32}$", description="letters, digits, dot, _ and -, 1 to 32")
    ] = "pbx"
    redis_timeout_ms: Positive = 2000

    clickhouse_url: str = "http://127.0.0.1:8123"
    clickhouse_username: str = "default"
    clickhouse_password: str = ""
    clickhouse_ca: str = ""
    clickhouse_database: Annotated[
        str,
        Meta(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,63}$", description="letters, digits and _, not a digit first, 1 to 64"),
    ] = "penaltybox"

    policy: str = ""
    local_percent: Annotated[int, Meta(ge=1, le=100)] = 50
    ipv6_prefix: Annotated[int, Meta(ge=16, le=128)] = 64
    hashed_dimensions: tuple[str, ...] = ()
    hash_key: str = ""

    trusted_proxies: tuple[str, ...] = ("127.0.0.0/8", "::1/128")
    client_ip_header: HeaderName = ""
    user_header: HeaderName = ""
    api_key_header: HeaderName = ""
    device_header: HeaderName = ""
    device_cookie: Annotated[
        str,
        Meta(
            pattern=r"^[A-Za-z0-9!#$%&'*+.^_`|~-]{0,64}$",
            description="the name of a cookie (letters, digits and !#$%&'*+.^_`|~-), at most 64, or nothing",
        ),
    ] = ""

    quota_headers: Literal["structured", "triple", "x_triple", "none"] = "structured"
    challenge_url: Annotated[
        str,
        Meta(
            pattern=r"^(https?://|/)[\x21-\x7e]*$|^$",
            description="a path that begins with /, or an http:// or https:// URL",
        ),
    ] = ""

    serve_host: str = "127.0.0.1"
    serve_port: Annotated[int, Meta(ge=0, le=65_535)] = 8118
    serve_processes: Annotated[int, Meta(ge=1, le=256)] = 1
    serve_secret: str = ""
    serve_without_secret: bool = False

    console_host: str = "127.0.0.1"
    console_port: Annotated[int, Meta(ge=0, le=65_535)] = 8119
    console_token: Annotated[
        str,
        Meta(
            pattern=r"^([\x21-\x7e]{16,256})?$",
            description="16 to 256 letters, digits or other ASCII signs without a space",
        ),
    ] = ""
    console_names: tuple[str, ...] = ()

    publisher_buffer: Annotated[int, Meta(ge=100, le=10_000_000)] = 10_000
    publisher_stop_s: Positive = 5
    spill_dir: str = ""
    spill_max_mb: Positive = 64

    actor: Annotated[str, Meta(max_length=128)] = ""
    alert_webhook_url: Annotated[
        str, Meta(pattern=r"^(https?://[\x21-\x7e]+)?$", description="an http:// or https:// URL")
    ] = ""
    alert_webhook_secret: str = ""
    alert_rungs: tuple[str, ...] = ()
    alert_rules: tuple[str, ...] = ()
    alert_shadow: bool = True
    alert_per_minute: Annotated[int, Meta(ge=1, le=10_000)] = 20
    alert_max_age: str = "1h"

    metrics_host: str = "127.0.0.1"
    metrics_port: Annotated[int, Meta(ge=0, le=65_535)] = 0

    data_dir: str = ""
    cache_subjects: Positive = 200_000
    linger_ms: Annotated[int, Meta(ge=0, le=10_000)] = 50
    stop_timeout_s: Positive = 20
    watchdog_s: Positive = 60
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = "INFO"

    def masked(self) -> dict[str, Any]:
        """Every setting for people: secrets as ``***``, passwords in URLs too."""
        shown: dict[str, Any] = {}
        for name in self.__struct_fields__:
            value = getattr(self, name)
            if name in _SECRETS and value:
                value = "***"
            elif name in _URLS:
                value = mask_url(value)
            shown[name] = value
        return shown

    def __repr__(self) -> str:
        """The masked form: a settings object in a log or traceback tells no secret."""
        return f"Settings({', '.join(f'{name}={value!r}' for name, value in self.masked().items())})"

    __str__ = __repr__


def mask_url(url: str) -> str:
    """A URL whose password, if any, is ``***``."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return "***"  # no URL, so nobody can say which part is the password
    userinfo, at, host = parts.netloc.rpartition("@")
    if not at or ":" not in userinfo:
        return url
    return urlunsplit(parts._replace(netloc=f"{userinfo.split(':', 1)[0]}:***@{host}"))


def read_settings(environment: Mapping[str, str], dotenv: Path | None = None) -> Settings:
    """Settings from ``PENALTYBOX_*`` variables; those in a `.env` file stand behind the environment's.

    Args:
        environment: usually ``os.environ``, read by the composition root.
        dotenv: a file of ``NAME=value`` lines, if it exists.

    Raises:
        ConfigurationError: an unknown name, or a value that is not allowed; the message never shows a secret.
    """
    found = _read_dotenv(dotenv) if dotenv is not None and dotenv.is_file() else {}
    found.update({name: value for name, value in environment.items() if name.startswith(PREFIX)})
    values: dict[str, Any] = {}
    for name, text in found.items():
        field = name.removeprefix(PREFIX).lower()
        if field not in Settings.__struct_fields__:
            near = get_close_matches(field, Settings.__struct_fields__, 1)
            meant = f", perhaps {PREFIX}{near[0].upper()}" if near else ""
            raise ConfigurationError(f"{name}: no such setting{meant}; docs/settings.md lists them")
        values[field] = tuple(filter(None, text.replace(" ", "").split(","))) if field in _LISTS else text
    settings = _convert(values)
    _check_urls(settings)
    _check_networks(settings)
    if settings.hashed_dimensions and not settings.hash_key:
        raise ConfigurationError(
            f"{PREFIX}HASH_KEY: got nothing, wanted a key, because {PREFIX}HASHED_DIMENSIONS is set"
        )
    return settings


def _convert(values: dict[str, Any]) -> Settings:
    for name, value in values.items():
        try:
            msgspec.convert({name: value}, Settings, strict=False)
        except msgspec.ValidationError as error:
            got = "***" if name in _SECRETS else mask_url(value) if name in _URLS else value
            raise ConfigurationError(f"{PREFIX}{name.upper()}: got {got!r}: {_wanted(name, error)}") from None
    return msgspec.convert(values, Settings, strict=False)


def _wanted(name: str, error: msgspec.ValidationError) -> str:
    """The decoder's words, but for a pattern, which is no sentence."""
    schema = msgspec.json.schema(Settings)["$defs"]["Settings"]["properties"][name]
    return f"wanted {schema['description']}" if "pattern" in schema else str(error).split(" - at", maxsplit=1)[0]


def _check_urls(settings: Settings) -> None:
    """What Python's own URL parser refuses, which every user of the URL would meet as a ValueError."""
    for name in sorted(_URLS):
        try:
            parts = urlsplit(getattr(settings, name))
            if "," not in parts.netloc:  # several hosts: whoever knows them reads them
                _ = parts.port
        except ValueError:  # its text quotes what may hold a password
            wanted = getattr(Settings(), name)
            raise ConfigurationError(
                f"{PREFIX}{name.upper()}: its host or port cannot be read; wanted a URL such as {wanted}"
            ) from None
    _check_webhook(settings)
    for broker in settings.kafka.split(","):
        host, colon, port = broker.strip().rpartition(":")
        alone = not colon or broker.strip().endswith("]")
        if not broker.strip() or (not alone and not (host and port.isascii() and port.isdecimal())):
            raise ConfigurationError(f"{PREFIX}KAFKA: got {settings.kafka!r}, wanted host:port[,host:port…]")


def _check_webhook(settings: Settings) -> None:
    try:
        parts = urlsplit(settings.alert_webhook_url)
        _ = parts.port
        readable = not settings.alert_webhook_url or bool(parts.hostname)
    except ValueError:
        readable = False
    if not readable:
        raise ConfigurationError(
            f"{PREFIX}ALERT_WEBHOOK_URL: its host or port cannot be read; wanted a URL such as https://host/path"
        )


def _check_networks(settings: Settings) -> None:
    for network in settings.trusted_proxies:
        if network == "unix":
            continue
        try:
            ip_network(network)
        except ValueError as error:
            raise ConfigurationError(
                f"{PREFIX}TRUSTED_PROXIES: got {network!r}, wanted addresses, networks such as 10.0.0.0/8, or unix: "
                f"{error}"
            ) from None


def _read_dotenv(path: Path) -> dict[str, str]:
    found = {}
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{path}: cannot be read: {cause(error)}") from error
    for number, line in enumerate(text.splitlines(), 1):
        entry = line.strip().removeprefix("export ")
        if not entry or entry.startswith("#"):
            continue
        name, equals, value = entry.partition("=")
        if not equals:
            raise ConfigurationError(f"{path}:{number}: got a line without =, wanted NAME=value")
        if name.strip().startswith(PREFIX):
            found[name.strip()] = _unquote(value.strip())
    return found


def _unquote(text: str) -> str:
    return text[1:-1] if len(text) > 1 and text[0] == text[-1] and text[0] in "\"'" else text
