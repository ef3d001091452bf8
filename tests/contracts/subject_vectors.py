"""Test vectors of canonical subjects for other languages, and the page that shows them.

`python -m tests.contracts.subject_vectors` writes docs/subjects.md; the tests check every line and that it is current.
"""

from __future__ import annotations

import json
from pathlib import Path

SUBJECTS = [
    ("user", "10086", "user:10086"),
    ("user", "amy@example.com", "user:amy%40example.com"),
    ("user", "a b", "user:a%20b"),
    ("user", "a:b", "user:a%3Ab"),
    ("user", "a+b", "user:a%2Bb"),
    ("user", "a}b", "user:a%7Db"),
    ("user", "100%", "user:100%25"),
    ("user", "-._~", "user:-._~"),
    ("user", "Zoë", "user:Zo%C3%AB"),
    ("user", "陈", "user:%E9%99%88"),
    ("user", "🐧", "user:%F0%9F%90%A7"),
    ("user_agent", "x/1", "user_agent:x%2F1"),
    ("ip", "203.0.113.7", "ip:203.0.113.7"),
    ("ip", "::ffff:203.0.113.7", "ip:203.0.113.7"),
    ("ip", "::FFFF:cb00:7107", "ip:203.0.113.7"),
    ("ip", "2001:db8::1", "ip:2001:db8::/64"),
    ("ip", "2001:DB8:0:0:1:2:3:4", "ip:2001:db8::/64"),
    ("ip", "2001:db8:0:7:ffff::", "ip:2001:db8:0:7::/64"),
    ("ip", "2001:0:0:1::9", "ip:2001:0:0:1::/64"),
    ("ip", "::1", "ip:::/64"),
    ("ip", "2001:db8::/64", "ip:2001:db8::/64"),
]
PREFIXES = [
    ("2001:db8:1:2ff::1", 56, "2001:db8:1:200::/56"),
    ("2001:db8:1:2ff::1", 64, "2001:db8:1:2ff::/64"),
    ("2001:db8:1:2ff::1", 128, "2001:db8:1:2ff::1/128"),
    ("203.0.113.7", 56, "203.0.113.7"),
]
KEYS = [
    ({"ip": "203.0.113.7", "user": "10086"}, "user:10086"),
    ({"ip": "203.0.113.7", "device": "d1", "user": "10086", "api_key": "k1"}, "api_key:k1"),
    ({"ip": "203.0.113.7", "login_name": "amy@example.com"}, "login_name:amy%40example.com"),
    ({"ip": "203.0.113.7", "device": "d1", "activity": "spring"}, "device:d1"),
    ({"ip": "::ffff:203.0.113.7"}, "ip:203.0.113.7"),
]
HASHES = [
    ("user", "10086", "_qomG8_ucnNKepXpga36RQ"),
    ("device", "10086", "jLpi4VxtuY87KEYgIqyCNw"),
    ("ip", "203.0.113.7", "KqOf2y5SS_MBKGwKeJ2gzw"),
    ("ip", "::ffff:203.0.113.7", "KqOf2y5SS_MBKGwKeJ2gzw"),
    ("ip", "2001:db8::1", "CoJIZVXFtouqfkKQVl-0NQ"),
]

_HEAD = """# Subjects: one text for one subject

Kafka keys, Redis keys, penalties and the command line all use the canonical form `dimension:value`. Programs in other
languages that publish decisions or read blocks must write the same text; this page is their test data. It is generated
from `tests/contracts/subject_vectors.py`, and the tests check every line of it.

- A dimension is `[a-z][a-z0-9_]{0,31}`. A value has 1 to 128 bytes of UTF-8, all of them printable.
- An address is parsed, never compared as text. IPv4-mapped IPv6 is IPv4. IPv6 counts and blocks by its /64 (a setting)
  and is written as RFC 5952 says, with the prefix length.
- In every other value each byte of its UTF-8 but `A-Z a-z 0-9 - . _ ~` becomes `%XX`, upper case.
- A combination joins dimensions and encoded values with `+`: `device+scenario:d1+coupon_claim`.
- A record's Kafka key is its most specific subject: api_key, user, device, others by name, ip. The partition is murmur2
  of the key, as the Java client computes it (librdkafka: `partitioner=murmur2_random`; Sarama's default differs).
"""


def page() -> str:
    """The text of docs/subjects.md."""
    parts = [_HEAD, "\n## Canonical form\n", "| dimension | value | canonical |", "|---|---|---|"]
    parts += [f"| {dimension} | `{value}` | `{canonical}` |" for dimension, value, canonical in SUBJECTS]
    parts += ["\n## Other IPv6 prefixes\n", "| address | prefix | canonical value |", "|---|---|---|"]
    parts += [f"| `{value}` | {prefix} | `{canonical}` |" for value, prefix, canonical in PREFIXES]
    parts += ["\n## Record keys\n", "| subjects | key |", "|---|---|"]
    parts += [f"| `{json.dumps(subjects)}` | `{key}` |" for subjects, key in KEYS]
    parts += [
        "\n## Hashed values\n",
        "Who must not put personal data on the wire sends, for the dimensions in `PENALTYBOX_HASHED_DIMENSIONS`, the",
        "first 16 bytes of HMAC-SHA256(key, dimension ‖ 0x00 ‖ value) as base64url without padding; an address is",
        "normalised first. Publishers and enforcers must use the same key. CIDR rules and prefixes don't apply to",
        "hashed addresses, and a new key forgets everybody. An entry of the policy's `allow` list names the hashed",
        "value, as `penaltybox blocks` prints it. Below, the key is `documented key`.\n",
        "| dimension | value | hashed |",
        "|---|---|---|",
    ]
    parts += [f"| {dimension} | `{value}` | `{hashed}` |" for dimension, value, hashed in HASHES]
    return "\n".join(parts) + "\n"


if __name__ == "__main__":
    Path("docs/subjects.md").write_text(page(), encoding="utf-8")
