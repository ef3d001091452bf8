from __future__ import annotations

import tomllib
from importlib import import_module
from pathlib import Path

import pytest
from faust.auth import SASLCredentials, SSLCredentials

from penaltybox.contracts.errors import ConfigurationError
from penaltybox.contracts.settings import Settings
from penaltybox.processors.app import kafka_credentials, make_app
from penaltybox.processors.transport import Transport

PYPROJECT = Path(__file__).parents[2] / "pyproject.toml"


def test_the_entry_point_names_our_transport() -> None:
    """`broker="pbx+kafka://…"` in any Faust app finds the transport."""
    points = tomllib.loads(PYPROJECT.read_text())["project"]["entry-points"]["faust.transports"]
    module, name = points["pbx+kafka"].split(":")
    assert getattr(import_module(module), name) is Transport


def test_every_role_has_its_own_group_and_no_web_server() -> None:
    """Analytics must not delay a block, and a worker opens no port."""
    apps = [make_app(Settings(topic_prefix="shop"), role) for role in ("penalties", "analytics")]
    assert [app.conf.id for app in apps] == ["shop-penalties", "shop-analytics"]
    assert not any(app.boot_strategy._should_enable_web() for app in apps)
    assert all(app.conf.topic_disable_leader for app in apps)


def test_plaintext_needs_no_credentials() -> None:
    """The default connects without any."""
    assert kafka_credentials(Settings()) is None


def test_tls_and_sasl_settings_reach_kafka() -> None:
    """Protocol, mechanism, user name and TLS context are passed through."""
    assert isinstance(kafka_credentials(Settings(kafka_security_protocol="SSL")), SSLCredentials)
    sasl = kafka_credentials(
        Settings(
            kafka_security_protocol="SASL_SSL",
            kafka_sasl_mechanism="SCRAM-SHA-512",
            kafka_username="worker",
            kafka_password="secret",  # noqa: S106 - a test value
        )
    )
    assert isinstance(sasl, SASLCredentials)
    assert sasl.mechanism.value == "SCRAM-SHA-512"
    assert sasl.ssl_context is not None
    assert "secret" not in repr(sasl)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (Settings(kafka_security_protocol="SASL_SSL"), "USERNAME"),
        (Settings(kafka_security_protocol="SSL", kafka_ca="/does/not/exist"), "KAFKA_CA"),
    ],
    ids=["no user", "no such file"],
)
def test_a_wrong_security_setting_says_which(settings: Settings, message: str) -> None:
    """The error names the variable to set."""
    with pytest.raises(ConfigurationError, match=message):
        kafka_credentials(settings)
