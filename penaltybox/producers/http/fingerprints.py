"""Which device fingerprints may become keys: of a length and of characters that make sense, and of one device only."""

from __future__ import annotations

import re
from typing import Final, Literal, NamedTuple

from penaltybox.contracts.errors import ConfigurationError
from penaltybox.contracts.subjects import MAX_VALUE_BYTES

Refusal = Literal["empty", "too_short", "too_long", "characters", "everybodys"]
_ALPHABET: Final = re.compile(r"[A-Za-z0-9._~:+/=-]+", re.ASCII)
_SEPARATORS: Final = re.compile(r"[._~:+/=-]")
# What clients send when they have none. As a key it would be one device with half of the users on it.
_EVERYBODYS: Final = frozenset(
    (
        "undefined", "unknown", "anonymous", "notavailable", "default", "objectobject", "00000000",
        "9774d56d682e549c",                # the id of every Android emulator, and of many old phones
        "020000000000",                    # the MAC address that iOS and Android show instead of the real one
        "d41d8cd98f00b204e9800998ecf8427e",                                  # MD5 of nothing
        "da39a3ee5e6b4b0d3255bfef95601890afd80709",                          # SHA-1 of nothing
        "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",  # SHA-256 of nothing
    )
)  # fmt: skip


class Checked(NamedTuple):
    """A fingerprint that may be used, or None and why not."""

    value: str | None
    refusal: Refusal | None


class Fingerprints:
    """Checks fingerprints and device ids. One that is refused counts as missing, so the scenario's `missing` decides.

    Args:
        least, most: characters; a short one is guessed and shared by chance, a long one is no fingerprint.
        alphabet: what it may consist of; by default letters, digits and ``. _ ~ : + / = -`` (hex, UUID, base64).

    Raises:
        ConfigurationError: lengths that no value can have.
    """

    def __init__(self, least: int = 8, most: int = MAX_VALUE_BYTES, alphabet: re.Pattern[str] = _ALPHABET) -> None:
        if not 1 <= least <= most <= MAX_VALUE_BYTES:
            raise ConfigurationError(
                f"fingerprints: got lengths from {least} to {most}, wanted from 1 to {MAX_VALUE_BYTES}"
            )
        self._least, self._most, self._alphabet = least, most, alphabet

    def check(self, text: str) -> Checked:
        """The fingerprint without white space around it, or the reason why it is none. Nothing is cut or replaced."""
        if len(text) > 2 * MAX_VALUE_BYTES:
            return Checked(None, "too_long")
        value = text.strip(" \t")
        refusal = self._refusal(value)
        return Checked(None, refusal) if refusal else Checked(value, None)

    def _refusal(self, value: str) -> Refusal | None:
        if not value:
            return "empty"
        if len(value) < self._least:
            return "too_short"
        if len(value) > self._most:
            return "too_long"
        if not self._alphabet.fullmatch(value):
            return "characters"
        bare = _SEPARATORS.sub("", value).lower()
        return "everybodys" if len(set(bare)) <= 1 or bare in _EVERYBODYS else None
