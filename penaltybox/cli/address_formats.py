"""Lists of networks in the form of the programs that enforce them: one function per program, list in, text out."""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING, Final, NamedTuple

from penaltybox.cli.address_lists import Difference

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from penaltybox.cli.address_lists import AddressList, Ban, Network

AWS_MOST: Final = 10_000
_CLOUDFLARE: Final = {4: (8, 32), 6: (12, 64)}
_NFT_LINE: Final = 500


class Written(NamedTuple):
    """A file's text, how many networks are in it, and how many are not, by why."""

    text: str
    networks: int
    left_out: Counter[str]


def _plain(ban: Ban) -> str:
    """One network a line; a single address without its length."""
    return f"{_short(ban)}\n"


def _haproxy(ban: Ban) -> str:
    """A map for `map_ip`: network, then `deny` or `challenge`."""
    return f"{_short(ban)} {ban.action}\n"


def _nginx_geo(ban: Ban) -> str:
    """For a `geo` block: network, then `deny` or `challenge`."""
    return f"{ban.network} {ban.action};\n"


def _nginx_deny(ban: Ban) -> str:
    """`deny` of nginx's access module."""
    return f"deny {_short(ban)};\n"


def _apache(ban: Ban) -> str:
    """`Require not ip` of Apache's mod_authz_host."""
    return f"Require not ip {_short(ban)}\n"


class LineForm(NamedTuple):
    """A form in which each ban is a line of its own, wherever it stands; `challenges`: it has a word for them."""

    line: Callable[[Ban], str]
    challenges: bool = False

    def written(self, bans: AddressList, _: int = 0) -> Written:
        """The whole list."""
        fit = bans if self.challenges else bans.denied()
        return Written("".join(map(self.line, fit.bans)), len(fit.bans), fit.left_out)


LINES: Final = {
    "plain": LineForm(_plain),
    "haproxy": LineForm(_haproxy, challenges=True),
    "nginx-geo": LineForm(_nginx_geo, challenges=True),
    "nginx-deny": LineForm(_nginx_deny),
    "apache": LineForm(_apache),
}


class KeptLines:
    """The text of a list that changes: each line is made once. New ones stand at the end."""

    def __init__(self, form: LineForm) -> None:
        self._form = form
        self._lines: dict[Network, str] = {}
        self._challenged: set[Network] = set()

    def put(self, bans: Iterable[Ban]) -> None:
        """The whole list, in the place of what was there."""
        self._lines.clear()
        self._challenged.clear()
        self.change(Difference([], list(bans)))

    def change(self, difference: Difference) -> None:
        """What has come in the place of what is gone; a line that stays the same keeps its place."""
        come = {ban.network: ban for ban in difference.come}
        for network in {ban.network for ban in difference.gone}.difference(come):
            self._lines.pop(network, None)
            self._challenged.discard(network)
        for network, ban in come.items():
            if ban.action == "deny" or self._form.challenges:
                self._lines[network] = self._form.line(ban)
                self._challenged.discard(network)
            else:
                self._lines.pop(network, None)
                self._challenged.add(network)

    def text(self) -> str:
        """All lines."""
        return "".join(self._lines.values())

    def left_out(self, others: Counter[str]) -> Counter[str]:
        """What is not in it: `others`, and challenges where the form has no word for them."""
        return others + Counter({"challenged": len(self._challenged)})


def nftables(bans: AddressList, now_ms: int) -> Written:
    """A script for `nft -f`: two sets, filled anew in one transaction, each element with what is left of its time."""
    denied = bans.denied()
    out = ["add table inet penaltybox"]
    for version in (4, 6):
        name = f"deny{version}"
        kind = f"{{ type ipv{version}_addr; flags interval, timeout; }}"
        out += [f"add set inet penaltybox {name} {kind}", f"flush set inet penaltybox {name}"]
        elements = [_element(ban, now_ms) for ban in denied.bans if ban.network.version == version]
        for at in range(0, len(elements), _NFT_LINE):
            out.append(f"add element inet penaltybox {name} {{ {', '.join(elements[at : at + _NFT_LINE])} }}")
    return Written("\n".join(out) + "\n", len(denied.bans), denied.left_out)


def _element(ban: Ban, now_ms: int) -> str:
    left = "" if ban.until is None else f" timeout {max(1, -(-(ban.until - now_ms) // 1000))}s"
    return _short(ban) + left


def cloudflare(bans: AddressList, _: int) -> Written:
    """Items of a custom list of Cloudflare's, as its API takes them."""
    denied = bans.denied()
    fit = [ban for ban in denied.bans if _takes(ban)]
    left = _more(denied.left_out, "too wide or too narrow for Cloudflare", len(denied.bans) - len(fit))
    return Written(
        json.dumps([{"ip": _short(ban), "comment": "penaltybox"} for ban in fit], indent=1) + "\n", len(fit), left
    )


def _takes(ban: Ban) -> bool:
    shortest, longest = _CLOUDFLARE[ban.network.version]
    return shortest <= ban.network.prefixlen <= longest


def aws_ipv4(bans: AddressList, _: int) -> Written:
    """The addresses of an AWS WAF IP set of IPv4, for `--addresses`."""
    return _aws(bans, 4)


def aws_ipv6(bans: AddressList, _: int) -> Written:
    """The addresses of an AWS WAF IP set of IPv6."""
    return _aws(bans, 6)


def _aws(bans: AddressList, version: int) -> Written:
    denied = bans.denied()
    mine = [ban for ban in denied.bans if ban.network.version == version]
    lasting = sorted(mine, key=lambda ban: -(ban.until or 1 << 62))[:AWS_MOST]
    left = _more(denied.left_out, "of the other IP version", len(denied.bans) - len(mine))
    left = _more(left, f"beyond AWS' {AWS_MOST:,}, those that end first", len(mine) - len(lasting))
    return Written(json.dumps([str(ban.network) for ban in lasting], indent=1) + "\n", len(lasting), left)


def _more(left_out: Counter[str], why: str, count: int) -> Counter[str]:
    return left_out + Counter({why: count})


def _short(ban: Ban) -> str:
    network = ban.network
    return str(network.network_address) if network.prefixlen == network.max_prefixlen else str(network)


FORMATS: Final[dict[str, Callable[[AddressList, int], Written]]] = {
    **{name: form.written for name, form in LINES.items()},
    "nftables": nftables,
    "cloudflare": cloudflare,
    "aws-waf-ipv4": aws_ipv4,
    "aws-waf-ipv6": aws_ipv6,
}
