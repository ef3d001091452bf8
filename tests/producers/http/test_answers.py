"""What a client is told: status, waits, quotas, texts; and that nothing it sends changes more than the wording."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penaltybox.contracts.errors import ConfigurationError
from penaltybox.contracts.policy import Scenario
from penaltybox.producers.http.answers import Answer, AnswerOptions, Jitter, Pretence, answer
from penaltybox.producers.verdict import LimitState, Verdict

PLAIN = AnswerOptions(jitter=Jitter(0, 0, 0))
QUOTA = "https://iana.org/assignments/http-problem-types#quota-exceeded"


def limit(name: str = "user:daily", **changed: Any) -> LimitState:
    """A limit of 3 a day, one of which is left for the next hour."""
    given = {"limit": 3, "window_ms": 86_400_000, "remaining": 1, "reset_ms": 3_600_000, "wait_ms": 0}
    return LimitState(**({"name": name, "answer": "deny", "dry_run": False} | given | changed))


def allowed(*limits: LimitState) -> Verdict:
    """A verdict that lets a request through."""
    return Verdict(action="allow", limits=limits)


def refused(*limits: LimitState, **changed: Any) -> Verdict:
    """A verdict about a request over its limits, 30 seconds too early."""
    limits = limits or (limit(remaining=0, wait_ms=29_001),)
    names = tuple(one.name for one in limits if one.wait_ms and not one.dry_run)
    given = {"action": "deny", "reason": "over_limit", "limits": limits, "violated": names, "retry_after_ms": 29_001}
    return Verdict(**(given | changed))


def fields(verdict: Verdict, options: AnswerOptions = PLAIN, **more: Any) -> dict[str, str]:
    """The header fields of an answer, none of them twice."""
    found = answer(verdict, Scenario(), options, **more).headers
    assert len({name.lower() for name, _ in found}) == len(found)
    return dict(found)


def problem(told: Answer) -> dict[str, Any]:
    """The body of an answer."""
    assert told.body is not None
    decoded = msgspec.json.decode(told.body)
    assert isinstance(decoded, dict)
    return decoded


def test_a_refusal_says_when_to_come_back_and_which_limits_it_was() -> None:
    """Status, wait rounded up, both structured fields with every limit, and the draft's problem type."""
    told = answer(refused(limit(remaining=0, wait_ms=29_001), limit("device:burst", limit=5)), Scenario(), PLAIN)
    assert told.status == 429
    headers = dict(told.headers)
    assert headers["Retry-After"] == "30"
    assert headers["RateLimit-Policy"] == '"user:daily";q=3;w=86400, "device:burst";q=5;w=86400'
    assert headers["RateLimit"] == '"user:daily";r=0;t=30, "device:burst";r=1;t=3600'
    assert headers["Content-Type"] == "application/problem+json"
    assert headers["Content-Length"] == str(len(told.body or b""))
    assert problem(told) == {
        "type": QUOTA,
        "title": "Request cannot be satisfied as assigned quota has been exceeded",
        "status": 429,
        "detail": "Too many requests. Please try again later.",
        "violated-policies": ["user:daily"],
        "retry-after": 30,
    }


def test_an_allowed_request_learns_what_is_left_before_it_runs_out() -> None:
    """The application answers, with the quota fields added to its answer."""
    told = answer(allowed(limit(), limit("ip:soft", remaining=9)), Scenario(), PLAIN)
    assert (told.status, told.body, told.withheld) == (None, None, False)
    assert dict(told.headers)["RateLimit"] == '"user:daily";r=1;t=3600, "ip:soft";r=9;t=3600'
    assert "Retry-After" not in dict(told.headers)


@pytest.mark.parametrize(
    ("verdict", "status", "kind"),
    [
        (refused(), 429, "quota-exceeded"),
        (refused(reason="local_fallback"), 429, "quota-exceeded"),
        (Verdict(action="deny", reason="blocklist", retry_after_ms=500), 429, "abnormal-usage-detected"),
        (Verdict(action="deny", reason="blocklist", permanent=True), 403, "abnormal-usage-detected"),
        (Verdict(action="deny", reason="fail_closed"), 503, "temporary-reduced-capacity"),
        (Verdict(action="challenge", reason="challenged"), 403, "penaltybox:challenge"),
        (refused(action="challenge"), 403, "penaltybox:challenge"),
        (Verdict(action="deny", reason="unknown", missing="device"), 400, "penaltybox:missing"),
    ],
)
def test_every_refusal_has_its_status_and_problem_type(verdict: Verdict, status: int, kind: str) -> None:
    """A program can tell the refusals apart, and each status and type can be set."""
    told = answer(verdict, Scenario(), PLAIN)
    assert (told.status, problem(told)["status"]) == (status, status)
    assert problem(told)["type"].endswith(kind)


def test_statuses_and_types_can_be_set() -> None:
    """A challenge as 401 with a type of the house and the place to pass it."""
    options = AnswerOptions(statuses={"challenge": 401}, types={"challenge": "urn:x"}, challenge_url="/captcha")
    told = answer(Verdict(action="challenge"), Scenario(), options)
    assert told.status == 401
    assert problem(told)["type"] == "urn:x"
    assert problem(told)["challenge-url"] == "/captcha"


@pytest.mark.parametrize("retry_after_ms", [-5_000, -1, 0, 1, 999, 1000])
def test_a_wait_is_never_negative_or_zero(retry_after_ms: int) -> None:
    """A block that has just ended, or ends in a millisecond, is a wait of one second."""
    assert fields(refused(retry_after_ms=retry_after_ms))["Retry-After"] == "1"


@pytest.mark.parametrize(
    "verdict",
    [
        refused(limit(remaining=2, wait_ms=-1), retry_after_ms=None),
        Verdict(action="deny", reason="blocklist", permanent=True, retry_after_ms=None),
        Verdict(action="deny", reason="fail_closed"),
    ],
)
def test_no_wait_is_made_up(verdict: Verdict) -> None:
    """Where waiting does not help, or nobody knows how long, there is no Retry-After: no default stands in for it."""
    assert "Retry-After" not in fields(verdict)
    assert "retry-after" not in problem(answer(verdict, Scenario(), PLAIN))


@given(
    st.integers(1, 1 << 45),
    st.floats(0, 1),
    st.builds(Jitter, st.integers(0, 300), st.integers(0, 99), st.integers(0, 9_999)),
)
def test_a_wait_is_rounded_up_and_only_ever_lengthened(wait_ms: int, drawn: float, jitter: Jitter) -> None:
    """No client is told to come before its time, none later than the jitter allows, and both fields agree."""
    verdict = refused(limit(remaining=0, wait_ms=wait_ms), retry_after_ms=wait_ms)
    found = fields(verdict, AnswerOptions(jitter=jitter), draw=lambda: drawn)
    exact = min(-(-wait_ms // 1000), (1 << 31) - 1)
    wait_s = int(found["Retry-After"])
    assert exact <= wait_s <= exact + jitter.most_s
    assert found["RateLimit"] == f'"user:daily";r=0;t={wait_s}'


def test_twenty_clients_of_one_window_do_not_come_back_in_the_same_second() -> None:
    """All wait for the same end of a window of a minute; at most a third of them is told the same second."""
    draw = random.Random(7).random
    seconds = [fields(refused(retry_after_ms=60_000), AnswerOptions(), draw=draw)["Retry-After"] for _ in range(20)]
    assert max(seconds.count(one) for one in seconds) <= 6
    assert min(map(int, seconds)) >= 60


def test_those_who_used_up_a_quota_are_spread_too() -> None:
    """Who took the last of a quota is told its reset with jitter; who has some left gets the plain one."""
    late = fields(allowed(limit(remaining=0), limit("a:b")), AnswerOptions(), draw=lambda: 0.999)
    assert late["RateLimit"] == '"user:daily";r=0;t=3900, "a:b";r=1;t=3600'


def test_the_triples_tell_the_tightest_limit() -> None:
    """Allowed: least left. Refused: the longest wait, and before all a cost that never fits."""
    day, burst = limit(remaining=2), limit("user:burst", limit=1, window_ms=10_000, remaining=0, reset_ms=9_500)
    triple = AnswerOptions(headers="triple", jitter=Jitter(0, 0, 0))
    assert fields(allowed(day, burst), triple) == {
        "RateLimit-Limit": "1", "RateLimit-Remaining": "0", "RateLimit-Reset": "10",
    }  # fmt: skip
    both = refused(limit(wait_ms=5_000), limit("ip:x", limit=7, wait_ms=9_000), limit("ip:y", limit=8))
    assert fields(both, triple)["RateLimit-Limit"] == "7"
    never = refused(limit(limit=2, wait_ms=-1), limit("ip:x", limit=7, wait_ms=9_000))
    assert fields(never, triple)["RateLimit-Limit"] == "2"


def test_the_x_triple_tells_a_time_or_seconds() -> None:
    """X-RateLimit-Reset is seconds since the epoch by default, a number of seconds if so set."""
    epoch = AnswerOptions(headers="x_triple", jitter=Jitter(0, 0, 0))
    assert fields(allowed(limit()), epoch, now_ms=1_766_400_000_001)["X-RateLimit-Reset"] == "1766403601"
    seconds = AnswerOptions(headers="x_triple", x_reset="seconds")
    assert fields(allowed(limit()), seconds, now_ms=1_766_400_000_001)["X-RateLimit-Reset"] == "3600"
    assert fields(allowed(limit()), AnswerOptions(headers="none")) == {}


def test_a_whole_quota_has_no_window() -> None:
    """Nothing is taken, so there is no time to tell; a window below a second counts as one."""
    found = fields(allowed(limit(remaining=3, reset_ms=0, window_ms=250)))
    assert found == {"RateLimit-Policy": '"user:daily";q=3;w=1', "RateLimit": '"user:daily";r=3'}


def test_a_partition_is_told_as_bytes() -> None:
    """The draft's pk is a byte sequence, in both fields."""
    found = fields(allowed(limit()), partition=b"trial121323")
    assert found["RateLimit"] == '"user:daily";r=1;t=3600;pk=:dHJpYWwxMjEzMjM=:'
    assert found["RateLimit-Policy"].endswith(";pk=:dHJpYWwxMjEzMjM=:")


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ('user:a"b\\c', '"user:a\\"b\\\\c"'),
        ("user:täglich", '"user:t%C3%A4glich"'),
        ("user:x\r\nSet-Cookie: a=b", '"user:x%0D%0ASet-Cookie:%20a%3Db"'),
        ("user:\x00", '"user:%00"'),
    ],
)
def test_a_limit_of_any_name_is_one_string(name: str, told: str) -> None:
    """Quotes are escaped, everything that is not printable ASCII is encoded; so a name cannot split a field."""
    assert fields(allowed(limit(name)))["RateLimit"].startswith(told + ";r=1")


def test_dry_runs_and_other_peoples_quotas_are_not_told() -> None:
    """A limit that is being tried, and one on a name that anybody can type in, stay inside."""
    told = fields(allowed(limit(), limit("user:new", dry_run=True), limit("login_name:a"), limit("ip+login_name:b")))
    assert told["RateLimit-Policy"] == '"user:daily";q=3;w=86400'


def test_names_can_be_hidden() -> None:
    """Digits stand for the names, the same ones in the fields and the body; what is missing is not said."""
    hidden = AnswerOptions(show_names=False)
    told = answer(refused(), Scenario(), hidden)
    (name,) = problem(told)["violated-policies"]
    assert dict(told.headers)["RateLimit-Policy"] == f'"{name}";q=3;w=86400'
    assert "user" not in str(told)
    assert "device" not in str(answer(Verdict(action="deny", missing="device"), Scenario(), hidden))
    assert problem(answer(Verdict(action="deny", missing="device"), Scenario()))["missing"] == "device"


def test_a_false_success_looks_like_a_true_one() -> None:
    """With a shadow limit no quota is ever told: neither while there is some, nor when it is violated."""
    spare, spent = limit(answer="shadow"), limit(answer="shadow", remaining=0, wait_ms=1)
    before = answer(allowed(spare, limit("ip:x")), Scenario())
    after = answer(refused(spent, limit("ip:x"), action="shadow"), Scenario())
    assert before == Answer(None, [], None)
    assert (after.status, after.headers, after.body, after.withheld) == (None, [], None, True)
    denied = answer(refused(spent, limit("ip:x", wait_ms=5)), Scenario())
    assert problem(denied)["violated-policies"] == ["ip:x"]


def test_a_false_success_can_be_canned() -> None:
    """A pretence is sent instead of calling the application."""
    canned = Pretence(status=201, headers=(("Content-Type", "application/json"),), body=b"{}")
    told = answer(Verdict(action="shadow"), Scenario(), AnswerOptions(pretence=canned))
    assert (told.status, told.body, told.withheld) == (201, b"{}", True)
    assert dict(told.headers) == {"Content-Type": "application/json", "Content-Length": "2"}
    head = answer(Verdict(action="shadow"), Scenario(), AnswerOptions(pretence=canned), method="HEAD")
    assert head == told._replace(body=None)


def test_head_gets_the_fields_of_get_without_a_body() -> None:
    """Status and fields are equal, the body is not sent."""
    got = answer(refused(), Scenario(), PLAIN)
    head = answer(refused(), Scenario(), PLAIN, method="HEAD")
    assert (head.status, head.headers, head.body) == (got.status, got.headers, None)


@pytest.mark.parametrize(
    ("accept", "media"),
    [
        ("", "application/problem+json"),
        ("*/*", "application/problem+json"),
        ("application/*", "application/problem+json"),
        ("application/json", "application/json"),
        ("text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8", "text/plain; charset=utf-8"),
        ("text/html;q=0.4, application/json;q=0.5", "application/json"),
        ("image/png", "application/problem+json"),
        ("application/problem+json;q=0, text/*;q=0.1", "text/plain; charset=utf-8"),
        (";;;q=,,\x00/\xff", "application/problem+json"),
    ],
)
def test_people_get_a_sentence_and_programs_a_problem(accept: str, media: str) -> None:
    """The body's form follows Accept; a form that is not there is no reason for another error."""
    told = answer(refused(), Scenario(), PLAIN, accept=accept)
    assert dict(told.headers)["Content-Type"] == media
    if media.startswith("text/"):
        assert told.body == b"Too many requests. Please try again later.\n"


MESSAGES = {"deny": {"zh-tw": "明天再來", "de": "In {seconds} Sekunden wieder", "fr": "Revenez demain"}}


@pytest.mark.parametrize(
    ("wanted", "language", "text"),
    [
        ("fr", "fr", "Revenez demain"),
        ("de-AT, fr;q=0.9", "de", "In 30 Sekunden wieder"),
        ("zh", "zh-tw", "明天再來"),
        ("zh-TW-x-private", "zh-tw", "明天再來"),
        ("da, fr;q=0.5, de;q=0.8", "de", "In 30 Sekunden wieder"),
        ("en", "en", "Too many requests. Please try again later."),
        ("da", "zh-tw", "明天再來"),
        ("", "zh-tw", "明天再來"),
        ("*", "zh-tw", "明天再來"),
        ("fr;q=0, *;q=0.1", "zh-tw", "明天再來"),
        ("fr;q=7, de;q=0.2", "de", "In 30 Sekunden wieder"),
        ("fr;q=nan, de;q=1.0", "de", "In 30 Sekunden wieder"),
    ],
)
def test_the_policys_sentence_in_the_clients_language(wanted: str, language: str, text: str) -> None:
    """Lookup as in RFC 4647 with weights; whoever wants none of the languages gets the policy's first."""
    told = answer(refused(), Scenario(messages=MESSAGES), PLAIN, wanted)
    assert (dict(told.headers)["Content-Language"], problem(told)["detail"], told.message) == (language, text, text)


def test_a_sentence_with_seconds_needs_seconds() -> None:
    """Without a wait the sentence about it is not used; the default language is a setting."""
    told = answer(refused(retry_after_ms=None), Scenario(messages={"deny": {"de": "noch {seconds} s"}}), PLAIN, "de")
    assert told.message == "Too many requests. Please try again later."
    french = AnswerOptions(language="fr")
    assert answer(refused(), Scenario(messages=MESSAGES), french).message == "Revenez demain"


def test_a_languages_name_cannot_split_a_field() -> None:
    """A policy's language that is no language tag is used, but not told."""
    told = answer(refused(), Scenario(messages={"deny": {"x\r\nevil: 1": "no \ud800"}}), PLAIN)
    assert "Content-Language" not in dict(told.headers)
    assert told.message == "no \ud800"
    assert problem(told)["detail"] == "no ?"


@given(st.text(), st.text(), st.text(max_size=8), st.floats(0, 1))
def test_no_header_of_a_client_breaks_or_splits_an_answer(
    language: str, accept: str, method: str, drawn: float
) -> None:
    """Whatever is sent, the answer is a refusal of one line per field, in ASCII."""
    verdict = refused()
    told = answer(
        verdict, Scenario(messages=MESSAGES), None, language, accept=accept, method=method, draw=lambda: drawn
    )
    assert told.status == 429
    for name, value in told.headers:
        assert f"{name}{value}".isascii()
        assert f"{name}{value}".isprintable()


def test_a_long_header_is_read_from_its_beginning_only() -> None:
    """10 KB of languages and of media types are cut, and what was read counts."""
    many = ", ".join(["fr"] + [f"x{n}" for n in range(4_000)])
    assert dict(answer(refused(), Scenario(messages=MESSAGES), PLAIN, many).headers)["Content-Language"] == "fr"
    assert answer(refused(), Scenario(), PLAIN, "x" * 10_000, accept="y" * 10_000).status == 429


@pytest.mark.parametrize(
    "options",
    [
        {"statuses": {"challenge": 42}},
        {"jitter": Jitter(-1)},
        {"pretence": Pretence(status=100)},
        {"pretence": Pretence(headers=(("A", "b\r\nC: d"),))},
        {"pretence": Pretence(headers=(("A b", "c"),))},
    ],
)
def test_options_that_cannot_be_sent_are_refused(options: dict[str, Any]) -> None:
    """A status that is none, a wait that is shortened, a header of two lines: told at the start."""
    with pytest.raises(ConfigurationError):
        AnswerOptions(**options)
