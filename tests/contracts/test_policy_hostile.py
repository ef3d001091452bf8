"""Policy files that nobody would write: whatever stands in them, it is a policy or one sentence."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penaltybox.contracts.durations import format_duration, parse_duration
from penaltybox.contracts.errors import ConfigurationError
from penaltybox.contracts.policy_file import load_policy, parse_policy

KEYS = (
    "rules", "limits", "ladder", "score", "shared_ip", "trust", "allow", "breaker", "lateness", "r", "on", "count",
    "distinct", "n", "window", "then", "when", "level", "rungs", "caps", "ip", "forgive", "points", "cidr", "until",
    "subject", "name", "limit",
)  # fmt: skip
yaml_texts = st.recursive(
    st.sampled_from(["step", "1h", "user", "ip", "5", "null", "true", "x", "-1", "2026-01-01", "''", "'*'"]),
    lambda inner: (
        st.lists(inner, max_size=3).map(lambda items: f"[{', '.join(items)}]")
        | st.dictionaries(
            st.sampled_from(KEYS),
            inner,
            max_size=4,
        ).map(lambda pairs: "{" + ", ".join(f"{key}: {value}" for key, value in pairs.items()) + "}")
    ),
    max_leaves=12,
)


@settings(deadline=None)
@given(text=yaml_texts)
def test_any_document_is_a_policy_or_a_sentence(text: str) -> None:
    """Whatever is written, it is a policy or a ConfigurationError, never another exception."""
    try:
        parse_policy(text)
    except ConfigurationError as error:
        told = str(error)
    else:
        told = "policy"
    assert told.startswith("policy")


@pytest.mark.parametrize("device", ["/dev/zero", "/dev/full"])
def test_a_file_without_an_end_is_a_sentence(device: str) -> None:
    """No more is read than a policy may have: a device in its place does not fill the memory."""
    with pytest.raises(ConfigurationError, match="wanted a policy of at most"):
        load_policy(device)


@settings(deadline=None)
@given(text=st.text(max_size=60))
def test_any_text_is_a_policy_or_a_sentence(text: str) -> None:
    """The same of any text at all."""
    try:
        parse_policy(text)
    except ConfigurationError as error:
        told = str(error)
    else:
        told = "policy"
    assert told.startswith("policy")


@given(st.integers(1, 3650 * 86_400_000))
def test_durations_read_back(value_ms: int) -> None:
    """A duration as it is shown is the duration as it is written."""
    if value_ms < 10**12:
        assert parse_duration(format_duration(value_ms)) == value_ms


def aliases(depth: int) -> str:
    """A list of a hundred bytes a line that means 10 ** depth values."""
    lines = ["  - &a0 [x,x,x,x,x,x,x,x,x,x]"]
    lines += [f"  - &a{i} [{','.join([f'*a{i - 1}'] * 10)}]" for i in range(1, depth)]
    return "lateness:\n" + "\n".join(lines)


@pytest.mark.parametrize(
    "text",
    [
        aliases(40),
        "rules: {r: {on: user, count: 2, window: 1m, then: step, shadow: !!bool maybe}}",
        "rules: {r: {on: user, count: !!int '', window: 1m, then: step}}",
        "lateness: !!float ''",
        "allow: [{subject: 'user:1', until: !!timestamp soon}]",
        "limits: !!python/object/apply:os.system ['true']",
        "limits: &a {x: *a}",
        "allow: &a [*a]",
        "trust: {multipliers: {'²': 150}}",
        "ladder: {rungs: ['٣m']}",
        "ladder: {jitter: 0x" + "f" * 50_000 + "}",
        "ladder: {jitter: 1" + ":59" * 5000 + "}",
        "limits:\n  a: &a {"
        + ", ".join(f"d{n}: &d [{', '.join(['x'] * 100)}]" for n in range(9))
        + "}\n"
        + "\n".join(
            f"  s{n}: &s{n} {{{', '.join(f'd{m}: {inner}' for m in range(99))}}}"
            for n, inner in enumerate(["*a", "*s0", "*s1", "*s2"])
        ),
        "ladder: {rungs: [" + ", ".join(["5m"] * 10_000) + "]}",
        "a: " + "[" * 5000,
        "# " + "x" * (1 << 20),
    ],
    ids=lambda text: text[:40],
)
def test_a_hostile_file_is_a_short_sentence(text: str) -> None:
    """Bombs of aliases, wrong tags, endless nesting and sizes end as a sentence, at once and without their content."""
    with pytest.raises(ConfigurationError) as caught:
        parse_policy(text)
    assert len(str(caught.value)) < 600
