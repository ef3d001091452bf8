"""Settings: read from the environment and `.env`; a mistake is told; a secret is never shown."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pytest

from penaltybox.contracts.errors import ConfigurationError
from penaltybox.contracts.settings import Settings, mask_url, read_settings

if TYPE_CHECKING:
    from pathlib import Path

SECRET = "hunter2-Zv"  # noqa: S105 - made up, to look for it in what is shown
SECRETS = {
    "PENALTYBOX_KAFKA_PASSWORD": SECRET,
    "PENALTYBOX_REDIS_PASSWORD": SECRET,
    "PENALTYBOX_CLICKHOUSE_PASSWORD": SECRET,
    "PENALTYBOX_HASH_KEY": SECRET,
    "PENALTYBOX_SERVE_SECRET": SECRET,
    "PENALTYBOX_REDIS_URL": f"rediss://worker:{SECRET}@redis.internal:6380/0",
    "PENALTYBOX_CLICKHOUSE_URL": f"https://worker:{SECRET}@clickhouse.internal:8443",
}


def test_defaults_need_nothing() -> None:
    """An empty environment gives settings for one machine."""
    assert read_settings({}) == Settings()


def test_environment_wins_over_the_file(tmp_path: Path) -> None:
    """A variable stands before the same name in `.env`; other programs' variables are not ours."""
    dotenv = tmp_path / ".env"
    dotenv.write_text(
        "# local\nexport PENALTYBOX_KAFKA=a:1\nPENALTYBOX_REDIS_PREFIX='mine'\n\nOTHER=1\n", encoding="utf-8"
    )
    found = read_settings({"PENALTYBOX_KAFKA": "b:2", "PATH": "/bin"}, dotenv)
    assert (found.kafka, found.redis_prefix) == ("b:2", "mine")


def test_a_file_with_a_byte_order_mark_is_read(tmp_path: Path) -> None:
    """Some editors begin a file with one; the first setting must not be lost to it without a word."""
    (tmp_path / ".env").write_bytes(b"\xef\xbb\xbfPENALTYBOX_KAFKA=kafka-9:9092\r\n")
    assert read_settings({}, tmp_path / ".env").kafka == "kafka-9:9092"


def test_numbers_and_lists_are_read() -> None:
    """Numbers are numbers, lists are separated by commas."""
    found = read_settings(
        {
            "PENALTYBOX_KAFKA_PARTITIONS": "16",
            "PENALTYBOX_HASHED_DIMENSIONS": "ip,user",
            "PENALTYBOX_HASH_KEY": "k",
        }
    )
    assert (found.kafka_partitions, found.hashed_dimensions) == (16, ("ip", "user"))


@pytest.mark.parametrize(
    ("name", "value", "wanted"),
    [
        ("KAFKA_PARTITIONS", "0", "1"),
        ("KAFKA_PARTITIONS", "many", "int"),
        ("IPV6_PREFIX", "129", "128"),
        ("TRUSTED_PROXIES", "10.0.0.0/8,lb", "10.0.0.0/8"),
        ("TRUSTED_PROXIES", "10.1.0.0/8", "host bits"),
        ("USER_HEADER", "X User", "wanted a header name"),
        ("SERVE_PORT", "65536", "65535"),
        ("KAFKA_SECURITY_PROTOCOL", "TLS", "Invalid enum"),
        ("REDIS_PREFIX", "a:b", "wanted letters, digits"),
        ("LOG_LEVEL", "verbose", "enum"),
        ("LINGER_MS", "-1", "0"),
        ("KAFKA_BROKERS", "a:1", "no such setting"),
        ("KAFAK", "a:1", "perhaps PENALTYBOX_KAFKA"),
        ("HASHED_DIMENSIONS", "ip", "HASH_KEY"),
    ],
)
def test_a_mistake_is_told(name: str, value: str, wanted: str) -> None:
    """The message names the variable and what was wanted."""
    with pytest.raises(ConfigurationError) as caught:
        read_settings({f"PENALTYBOX_{name}": value})
    assert "PENALTYBOX_" in str(caught.value)
    assert wanted in str(caught.value)


def test_a_line_without_an_equals_sign_is_told(tmp_path: Path) -> None:
    """The file and the line are named."""
    dotenv = tmp_path / ".env"
    dotenv.write_text("PENALTYBOX_KAFKA=a:1\nnonsense\n", encoding="utf-8")
    with pytest.raises(ConfigurationError, match=r"\.env:2"):
        read_settings({}, dotenv)


@pytest.mark.parametrize("content", [b"\xff\xfe", None], ids=["not UTF-8", "no permission"])
def test_an_unreadable_dotenv_is_told(tmp_path: Path, content: bytes | None) -> None:
    """A file that is no text, or that we may not read, is a sentence with its name."""
    dotenv = tmp_path / ".env"
    dotenv.write_bytes(content or b"")

    class Forbidden(type(dotenv)):  # type: ignore[misc] - root may read everything
        def read_text(self, *_: object, **__: object) -> str:
            raise PermissionError(13, "Permission denied")

    with pytest.raises(ConfigurationError, match=r"\.env: cannot be read"):
        read_settings({}, dotenv if content else Forbidden(dotenv))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("REDIS_URL", "redis://:s3cret@[::1"),
        ("REDIS_URL", "redis://host:s3cret@h:port"),
        ("REDIS_URL", "redis://h:99999/0"),
        ("REDIS_URL", "redis://:s3cret\u2100@h"),
        ("CLICKHOUSE_URL", "http://s3cret:99999"),
        ("CLICKHOUSE_URL", "http://[s3cret"),
        ("KAFKA", "host:port"),
        ("KAFKA", ""),
        ("KAFKA", "a:1,,b:2"),
    ],
)
def test_addresses_that_cannot_be_read_are_sentences(name: str, value: str) -> None:
    """What a URL parser or a client would raise as a ValueError names the variable, and tells no password."""
    with pytest.raises(ConfigurationError, match=f"PENALTYBOX_{name}") as caught:
        read_settings({f"PENALTYBOX_{name}": value})
    assert "s3cret" not in str(caught.value)
    assert mask_url("redis://:s3cret@[::1") == "***"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("KAFKA", "a:1, b:2,c"),
        ("KAFKA", "[::1]:9092,[::1]"),
        ("REDIS_URL", "redis+sentinel://u:p@h1:26379,h2:26379/main"),
        ("REDIS_URL", "unix:///run/redis.sock"),
        ("CLICKHOUSE_URL", "chdb:///tmp/x"),
        ("CLICKHOUSE_URL", "https://u:p@[::1]:8443"),
    ],
)
def test_addresses_that_are_meant_so_are_taken(name: str, value: str) -> None:
    """Several hosts, IPv6, sockets and directories are no mistakes."""
    assert getattr(read_settings({f"PENALTYBOX_{name}": value}), name.lower()) == value


def test_no_secret_is_ever_shown() -> None:
    """Printed, formatted, masked or logged, settings tell no secret, nor do passwords in URLs show."""
    found = read_settings(SECRETS)
    assert found.redis_password == SECRET
    for shown in (repr(found), str(found), f"{found}", str(found.masked()), "%s" % found):  # noqa: UP031 - every way
        assert SECRET not in shown
        assert "***" in shown
    assert found.masked()["redis_url"] == "rediss://worker:***@redis.internal:6380/0"


@pytest.mark.parametrize("name", sorted(SECRETS))
def test_no_secret_is_shown_by_a_mistake(name: str) -> None:
    """A secret beside a mistake stays secret: neither message nor cause shows it."""
    with pytest.raises(ConfigurationError) as caught:
        read_settings({name: SECRETS[name], "PENALTYBOX_KAFKA_PARTITIONS": "0"})
    assert SECRET not in f"{caught.value!r} {caught.value} {caught.value.__cause__}"


@pytest.mark.parametrize(
    ("url", "masked"),
    [
        ("redis://localhost:6379/0", "redis://localhost:6379/0"),
        ("redis://:pw@localhost", "redis://:***@localhost"),
        ("redis://user@localhost", "redis://user@localhost"),
        ("redis://user:p@ss:w@localhost/1", "redis://user:***@localhost/1"),
    ],
)
def test_urls_are_masked(url: str, masked: str) -> None:
    """Only the password is hidden; the rest stays readable."""
    assert mask_url(url) == masked


def test_no_pattern_is_shown_to_people() -> None:
    """Every setting of a certain form says in words what is wanted, not by a regular expression."""
    properties = msgspec.json.schema(Settings)["$defs"]["Settings"]["properties"]
    formed = [name for name, schema in properties.items() if "pattern" in schema]
    assert formed
    for name in formed:
        with pytest.raises(ConfigurationError, match="wanted ") as told:
            read_settings({f"PENALTYBOX_{name.upper()}": "\u00e9 \u00e9"})
        assert "regex" not in str(told.value), name
