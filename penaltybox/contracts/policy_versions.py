"""Versions of the policy as they are stored, in Redis and on the control topic, and which one is in force."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal

import msgspec

from penaltybox.contracts.errors import ConfigurationError
from penaltybox.contracts.policy_file import parse_policy

if TYPE_CHECKING:
    from penaltybox.contracts.policy import Policy

MAX_TEXT_BYTES: Final = 512 * 1024
"""Of a policy's text: its record must pass the broker's limit of 1 MiB a message, whatever JSON makes of it."""
VERSION_KEY: Final = "policy:"
SWITCH_KEY: Final = "policy"


class StoredPolicy(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A version: value of `pbx:policy:<version>`, and of the control record with the key ``policy:<version>``.

    Attributes:
        version: see `Policy.version`; of the release that stored it.
        text: the file as it was given, comments and all.
        name: where it was read from.
        actor: who brought it.
        reason: why.
        ts: when, ms.
    """

    version: str
    text: str
    name: str = ""
    actor: str = ""
    reason: str = ""
    ts: int = 0

    def policy(self) -> Policy:
        """The policy.

        Raises:
            ConfigurationError: this release does not understand it.
        """
        return parse_policy(self.text, f"policy {self.version}")


class Switch(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Which version came into force when, by whom, why: value of `pbx:policy`, and of the entries of its history."""

    version: str
    ts: int = 0
    actor: str = ""
    reason: str = ""
    verb: Literal["apply", "rollback", "restore"] = "apply"


def read_switch(raw: bytes) -> Switch:
    """What `pbx:policy` says.

    Raises:
        ConfigurationError: it says nothing that we know.
    """
    try:
        return msgspec.json.decode(raw, type=Switch)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise ConfigurationError(
            f"the policy in force in Redis: got {raw[:60]!r}, wanted what `penaltybox policy apply` writes: {error}"
        ) from error


def read_version(raw: bytes, version: str) -> StoredPolicy:
    """A stored version.

    Raises:
        ConfigurationError: it is none.
    """
    try:
        return msgspec.json.decode(raw, type=StoredPolicy)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise ConfigurationError(
            f"policy version {version} in Redis cannot be read: {error}; apply it again"
        ) from error
