"""What stands on the lists that are kept by hand: a subject, an address, or a range of addresses, as people type it."""

from __future__ import annotations

import re
from ipaddress import IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import TYPE_CHECKING, Final

from penaltybox.contracts.errors import ConfigurationError, shown

if TYPE_CHECKING:
    from penaltybox.contracts.subjects import Canonicaliser

_MAPPED_BITS: Final = 96
_SUBJECT: Final = re.compile(r"(?:ip:[0-9]{1,3}(?:\.[0-9]{1,3}){3}|[a-z][a-z0-9_]*[g-z_][a-z0-9_]*:[A-Za-z0-9._~-]+)")
"""A subject whose parts can be no other thing: an IPv4 address with its dimension, or a name that is no hexadecimal."""
WIDEST: Final = {4: 8, 6: 16}
"""Shorter prefixes than these are nobody's network: a typing error, or everybody."""


def as_range(text: str) -> IPv4Network | IPv6Network | None:
    """The network of ``203.0.113.0/24`` or ``ip:203.0.113.0/24``, host bits dropped; IPv4-mapped as IPv4.

    None for what is no network in CIDR notation: a bare address, a subject.
    """
    given = text.removeprefix("ip:")
    if "/" not in given or "%" in given:
        return None
    try:
        network = ip_network(given, strict=False)
    except ValueError:
        return None
    if isinstance(network, IPv6Network) and network.network_address.ipv4_mapped and network.prefixlen >= _MAPPED_BITS:
        return IPv4Network((network.network_address.ipv4_mapped, network.prefixlen - _MAPPED_BITS))
    return network


def listed_range(text: str) -> IPv4Network | IPv6Network | None:
    """The network that a field of a list of ranges means, as limiters read it: a bare address is itself alone.

    None for what is neither: it does nothing.
    """
    address, slash, length = text.partition("/")
    if text.startswith("ip:") or (slash and not (length.isascii() and length.isdecimal())):
        return None
    return as_range(text if slash else f"{address}/{128 if ':' in address else 32}")


def as_address(text: str) -> str | None:
    """A bare address (``203.0.113.7``, ``2001:db8::1``) as the subject that someone would type; None if it is none."""
    given = text.removeprefix("ip:")
    try:
        address = ip_address(given)
    except ValueError:
        return None
    return None if isinstance(address, IPv6Address) and address.scope_id else f"ip:{given}"


def banned_range(text: str, canonicaliser: Canonicaliser, *, force: bool = False) -> str | None:
    """The range that a ban means; None when `text` is a subject: an address, or IPv6 by the prefix that counts.

    Raises:
        ConfigurationError: a range with host bits (which is meant, the address or the network?), or too wide a one.
    """
    network = as_range(text)
    if network is None or _is_subject(network, canonicaliser.ipv6_prefix):
        return None
    typed = text.removeprefix("ip:").partition("/")[0]
    if isinstance(network, IPv4Network) == (":" not in typed) and ip_address(typed) != network.network_address:
        raise ConfigurationError(f"got {shown(text)}, which is within {network}: ban {network}, or ip:{typed} alone")
    _check_width(network, force=force)
    return str(network)


def _is_subject(network: IPv4Network | IPv6Network, ipv6_prefix: int) -> bool:
    return network.prefixlen == (32 if isinstance(network, IPv4Network) else ipv6_prefix)


def _check_width(network: IPv4Network | IPv6Network, *, force: bool) -> None:
    if network.prefixlen < WIDEST[network.version] and not force:
        raise ConfigurationError(
            f"{network} is {'everybody' if not network.prefixlen else 'a large part of the Internet'}: "
            f"wanted at least /{WIDEST[network.version]}; --force if you mean it"
        )


def allowed_range(text: str, canonicaliser: Canonicaliser, *, force: bool = False) -> str | None:
    """The range that an allowlist entry means; None when `text` is a subject.

    Host bits are dropped, as everybody's lists have them. An IPv6 range within the prefix that counts is a subject.

    Raises:
        ConfigurationError: too wide a range.
    """
    network = as_range(text)
    if network is None or _is_subject(network, canonicaliser.ipv6_prefix):
        return None
    if isinstance(network, IPv6Network) and network.prefixlen > canonicaliser.ipv6_prefix:
        return None
    _check_width(network, force=force)
    return str(network)


def subject_text(text: str) -> str:
    """What is no range, as a subject to be parsed: a bare address gets its dimension, a /32 or longer IPv6 its address.

    Raises:
        ConfigurationError: neither an address nor dimension:value.
    """
    if _SUBJECT.fullmatch(text):
        return text  # by far the most common case
    network = as_range(text)
    if network is not None:
        return f"ip:{network.network_address}"
    address = as_address(text)
    if address is not None:
        return address
    if ":" not in text or "%" in text.partition("::")[2] or "/" in text.partition(":")[0]:
        raise ConfigurationError(
            f"got {shown(text)}, wanted dimension:value, an address, or a range such as 203.0.113.0/24 "
            "(names of hosts are not looked up)"
        )
    return text
