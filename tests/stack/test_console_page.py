"""The console's page in a real browser, on real servers: what it shows, how it acts, who can use it."""

from __future__ import annotations

import json
import signal
from typing import TYPE_CHECKING, Any

import pytest
from redis import Redis

from penaltybox.cli.console_page.routes import PREFIX
from penaltybox.contracts.clock import now_ms
from penaltybox.contracts.keyspace import Keyspace
from tests.stack.browsers import PHONE, Window, accessibility, chromium
from tests.stack.console_world import HOSTILE, TOKEN, Console, World, decision
from tests.waiting import block_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from playwright.sync_api import Browser, Page

pytestmark = [pytest.mark.stack, pytest.mark.any_broker, pytest.mark.programs("chromium")]
EVIL = '</script><img src=x onerror="window.pwned=9">\u202eevil'


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as found:
        yield found


@pytest.fixture
def window(browser: Browser) -> Iterator[Callable[..., Window]]:
    """`window(color_scheme="dark")` -> a fresh window; whatever it complained about fails the test."""
    opened: list[Window] = []

    def make(**options: Any) -> Window:
        opened.append(Window(browser, **options))
        return opened[-1]

    yield make
    complaints = [one for each in opened for one in each.complaints]
    for each in opened:
        each.close()
    assert complaints == []


def open_page(window: Callable[..., Window], console: Console, part: str = "", **options: Any) -> Page:
    """The page, with everything that it shows at first."""
    page = window(**options).page
    page.goto(console.address)
    for panel in ("blocks", "funnel", "rates", "places"):
        page.wait_for_selector(f"#{panel} td")
    page.wait_for_selector("#penalties li")
    if part:
        page.evaluate("part => { location.hash = part }", part)
        page.wait_for_selector("dialog section")
    return page


def test_the_page_shows_the_state_of_things(window: Any, console: Console) -> None:
    """One sentence, figures, blocks with countdowns, penalties, rates with intervals; the token leaves the address."""
    page = open_page(window, console)
    assert page.inner_text(".verdict .headline").strip() == "All is in order."
    assert TOKEN not in page.url
    assert page.inner_text(".tile strong >> nth=0") == str(console.get(f"{PREFIX}/status")["denied"])
    before = page.inner_text("#blocks tbody tr:first-child td:last-child")
    page.wait_for_function(
        "text => document.querySelector('#blocks tbody tr td:last-child').innerText !== text", arg=before
    )
    assert " to " in page.inner_text("#rates")
    assert "Shared: its size" in page.inner_text("#places tbody tr:first-child")
    page.select_option("#blocks select >> nth=0", "device")
    block_until(lambda: "user:" not in page.inner_text("#blocks > table"))
    page.fill("#blocks input", "rack-11")
    block_until(lambda: page.locator("#blocks > table tbody tr").count() == 1)
    page.fill("#blocks input", "nobody has this name")
    page.wait_for_selector("#blocks .quiet")


def test_penalties_come_by_themselves(window: Any, console: Console, world: World) -> None:
    """A penalty is on the page without anybody asking; while the list is held it waits, and is counted."""
    page = open_page(window, console)
    world.happen([decision({"user": "late-1"}, now_ms() + turn, "user:daily") for turn in range(6)])
    page.wait_for_selector("#penalties a:has-text('user:late-1')")
    page.click("#penalties button")
    world.happen([decision({"user": "late-2"}, now_ms() + turn, "user:daily") for turn in range(6)])
    page.wait_for_selector("#penalties button:has-text('new')")
    assert "late-2" not in page.inner_text("#penalties ol")
    page.click("#penalties button")
    page.wait_for_selector("#penalties a:has-text('user:late-2')")


def test_hostile_values_are_texts(window: Any, console: Console, world: World) -> None:
    """Names, rules, reasons and actors that are markup are shown as they are; nothing of them runs or turns text."""
    redis = Redis.from_url(world.settings.redis_url)
    key = Keyspace(world.settings.redis_prefix).subject_keys(["user:other-program"], "block")[0]
    redis.set(key, json.dumps({"until": now_ms() + 900_000, "rung": EVIL, "rule": EVIL, "penalty": EVIL}))
    redis.publish(Keyspace(world.settings.redis_prefix).events, "user:other-program")
    redis.close()
    reason = EVIL.replace("\u202e", "")
    assert console.ask(f"{PREFIX}/ban", {"subject": "user:victim", "reason": reason, "actor": reason}).status == 200
    assert console.ask(f"{PREFIX}/ban", {"subject": "198.18.9.0/24", "reason": reason, "actor": reason}).status == 200
    page = open_page(window, console)
    page.wait_for_selector("#blocks .ranges tbody tr")
    page.fill("#blocks input", "other-program")
    block_until(lambda: page.locator("#blocks > table tbody tr").count() == 1)
    assert "</script><img" in page.inner_text("#blocks > table")
    assert "\\u{202e}" in page.inner_text("#blocks > table")
    assert "\u202e" not in page.inner_text("body")
    for name in (*HOSTILE, "victim"):
        page.fill("#question", f"user:{name}")
        page.press("#question", "Enter")
        page.wait_for_selector("dialog section")
        assert page.inner_text("#subject-title").startswith("user:")
        page.keyboard.press("Escape")
        page.wait_for_selector("dialog", state="hidden")
    assert page.evaluate("window.pwned") is None
    page.set_viewport_size(PHONE)
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
    assert page.locator("script").count() == 1
    assert page.locator("img").count() == 1
    assert console.ask(f"{PREFIX}/unban", {"subject": "198.18.9.0/24", "reason": "done"}).status == 200


def test_a_ban_by_hand(window: Any, console: Console, world: World) -> None:
    """Without a reason nothing is sent, and the field is said to be wrong; with one it is done, told, and recorded."""
    page = open_page(window, console, "subject=user:carol")
    page.click('dialog button:text-is("Ban …")')
    assert page.evaluate("document.activeElement.name") == "reason"
    page.click("dialog button.solid")
    assert "reason is needed" in page.inner_text("[role=alert]")
    assert page.get_attribute("[name=reason]", "aria-invalid") == "true"
    page.fill("[name=reason]", "chargeback, ticket 4711")
    page.fill("[name=actor]", "carla")
    page.fill("[name=for]", "36h")
    page.press("[name=for]", "Enter")
    page.wait_for_selector("#told:has-text('by carla: chargeback, ticket 4711')")
    page.wait_for_selector("dialog .marks .pill.deny")
    recorded = "subject = 'user:carol' AND actor = 'carla' AND note = 'chargeback, ticket 4711'"
    block_until(lambda: world.count("penalties", recorded) == 1, 30, "the ban in the audit trail")
    page.click('dialog button:text-is("Unban …")')
    assert page.input_value("[name=actor]") == "carla"
    page.fill("[name=reason]", "paid")
    page.select_option("[name=grace]", "1h")
    page.click("dialog button.solid")
    page.wait_for_selector("dialog .marks:has-text('Grace')")
    assert not console.get(f"{PREFIX}/subject?subject=user:carol")["now"]["in_force"]


def test_a_range_by_hand(window: Any, console: Console) -> None:
    """A range is typed where subjects are; its page says that it has no ladder, and bans and lifts the whole of it."""
    page = open_page(window, console)
    page.fill("#question", "198.18.77.0/24")
    page.press("#question", "Enter")
    page.wait_for_selector("dialog .marks:has-text('not banned')")
    page.click('dialog button:text-is("Ban …")')
    page.fill("[name=reason]", "scanner")
    page.press("[name=reason]", "Enter")
    page.wait_for_selector("dialog .marks .pill.deny")
    page.keyboard.press("Escape")
    page.click("#blocks .ranges a:has-text('198.18.77.0/24')")
    page.click('dialog button:text-is("Unban …")')
    page.fill("[name=reason]", "over")
    page.press("[name=reason]", "Enter")
    page.wait_for_selector("dialog .marks:has-text('not banned')")


def test_by_keyboard_alone(window: Any, console: Console) -> None:
    """The first stop skips to the contents, `/` finds the search, a subject opens and closes, and focus comes back."""
    page = open_page(window, console)
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"
    page.keyboard.press("/")
    assert page.evaluate("document.activeElement.id") == "question"
    page.focus("#blocks > table tbody tr:first-child a")
    name = page.inner_text("#blocks > table tbody tr:first-child a")
    page.keyboard.press("Enter")
    page.wait_for_selector("dialog section")
    assert page.inner_text("#subject-title") == name
    for _ in range(30):
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement === document.body || !!document.activeElement.closest('dialog')")
    page.keyboard.press("Escape")
    page.wait_for_selector("dialog", state="hidden")
    assert page.evaluate("document.activeElement.innerText") == name
    assert "#subject" not in page.url


def test_signing_in(browser: Browser, console: Console) -> None:
    """Without a token there is a form and nothing else; a wrong one is told; the right one opens."""
    window = Window(browser)
    page = window.page
    page.goto(f"http://127.0.0.1:{console.port}/")
    page.wait_for_selector("[name=token]")
    assert not page.is_visible("#panels")
    assert accessibility(page) == []
    page.fill("[name=token]", "not the token at all")
    page.keyboard.press("Enter")
    page.wait_for_selector("[role=alert]")
    page.fill("[name=token]", TOKEN)
    page.keyboard.press("Enter")
    page.wait_for_selector("#blocks td")
    page.reload()
    page.wait_for_selector("#blocks td")
    assert all("401" in one for one in window.complaints)
    window.close()


@pytest.mark.parametrize("look", ["light", "dark", "phone"])
def test_everybody_can_use_it(window: Any, console: Console, look: str) -> None:
    """axe-core finds nothing, by day, by night, on a phone, with a subject and a form open; nothing scrolls aside."""
    options: dict[str, Any] = {"color_scheme": "dark"} if look == "dark" else {}
    if look == "phone":
        options = {"viewport": PHONE, "is_mobile": True, "has_touch": True}
    page = open_page(window, console, reduced_motion="reduce", **options)
    page.evaluate("document.querySelectorAll('details').forEach(one => one.open = true)")
    assert accessibility(page) == []
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    page.evaluate("location.hash = 'subject=device:rack-1'")
    page.wait_for_selector("dialog section")
    page.click('dialog button:text-is("Ban …")')
    assert accessibility(page) == []
    assert page.evaluate("document.querySelector('dialog').scrollWidth <= innerWidth")


def test_words(window: Any, console: Console) -> None:
    """Durations, shares and texts as people read them; what cannot be seen is shown as its code."""
    page = open_page(window, console)
    told = page.evaluate("""async () => {
        const { span, percent, plain, count, plural } = await import("/words.js");
        return [...[3552000, 273600000, 1, 0, 86400000].map(span), ...[0.173, 0.0042, 0, null].map(percent),
                ...["a\\u202eb\\u0000c\\u200b", "Zoë 漢字 👍"].map(plain), count(10000), plural(1, "range")];
    }""")
    assert told == [
        "59m 12s", "3d 4h", "1s", "0s", "1d", *(f"{share}\N{NO-BREAK SPACE}%" for share in ("17", "0.4", "0")),
        "\N{EN DASH}", "a\\u{202e}b\\u{0}c\\u{200b}", "Zoë 漢字 👍", "10,000", "1 range",
    ]  # fmt: skip


def test_a_console_that_says_nothing_any_more(browser: Browser, world: World) -> None:
    """A connection that died without a word is told as one that was closed is; all comes back when it speaks again."""
    window = Window(browser)
    with Console(world.settings, "--matures", "30s") as still:
        page = window.page
        page.goto(still.address)
        page.wait_for_selector("#rates td")
        still.process.send_signal(signal.SIGSTOP)
        try:
            page.wait_for_selector(".headline:has-text('The console does not answer.')")
            assert "What you see is old" in page.inner_text(".verdict")
        finally:
            still.process.send_signal(signal.SIGCONT)
        page.wait_for_selector(".headline:has-text('All is in order.')")
        page.wait_for_selector("#rates td")
    window.close()


def test_a_subject_stays_current(window: Any, console: Console) -> None:
    """With its page open, countdowns go on, and what somebody else does shows; what is being written is left alone."""
    body = {"subject": "user:dora", "reason": "r", "actor": "a", "for": "2h"}
    assert console.ask(f"{PREFIX}/ban", body).status == 200
    page = open_page(window, console, "subject=user:dora")
    page.wait_for_selector("dialog .marks .pill.deny")
    before = page.inner_text("dialog .marks")
    page.wait_for_function("text => document.querySelector('dialog .marks').innerText !== text", arg=before)
    assert console.ask(f"{PREFIX}/unban", {"subject": "user:dora", "reason": "over"}).status == 200
    page.wait_for_selector("dialog .marks:has-text('Nothing is in force')")
    page.click('dialog button:text-is("Ban …")')
    page.fill("[name=actor]", "somebody who types")
    page.fill("[name=reason]", "half a sen")
    assert (
        console.ask(f"{PREFIX}/ban", {"subject": "user:dora", "reason": "r", "actor": "a", "for": "2s"}).status == 200
    )
    clock = page.inner_text("#penalties li >> nth=0")
    page.wait_for_function("text => document.querySelector('#penalties li').innerText !== text", arg=clock)
    assert page.input_value("[name=actor]") == "somebody who types"
    assert page.input_value("[name=reason]") == "half a sen"


def test_what_has_ended_leaves_the_list(window: Any, console: Console) -> None:
    """A block that ends by itself is off the page soon, and the figures above the list and beside it agree."""
    page = open_page(window, console)
    page.fill("#blocks input", "user:short")
    page.wait_for_selector("#blocks .quiet")
    assert (
        console.ask(f"{PREFIX}/ban", {"subject": "user:short", "reason": "r", "actor": "a", "for": "3s"}).status == 200
    )
    page.wait_for_selector("#blocks > table td")
    page.wait_for_selector("#blocks .quiet:has-text('Nobody matches')")


def test_another_devices_clock(window: Any, console: Console, world: World) -> None:
    """A device whose clock is a day ahead shows the console's time: what was just now, and how long is left."""
    made = window()
    made.page.add_init_script("const real = Date.now; Date.now = () => real() + 86_400_000")
    world.happen([decision({"user": "clock-1"}, now_ms() + turn, "user:daily") for turn in range(6)])
    made.page.goto(console.address)
    made.page.wait_for_selector("#penalties a:has-text('user:clock-1')")
    assert "in the last 5 minutes" in made.page.inner_text(".verdict")
    made.page.wait_for_selector("#blocks td.number:has-text('m ')")


def probed(dimension: str, drawn: int, status: str, *rate: float) -> dict[str, Any]:
    """A row of the answer about rates; labels say the same in each."""
    value, low, high = rate or (None, None, None)
    return {
        "dimension": dimension, "episodes": 200, "immature": 3, "labelled": 60, "fdr_status": "actionable", "fdr": 0.1,
        "fdr_low": 0.05, "fdr_high": 0.15, "fpr_status": "report only", "fpr": 0.01, "fpr_low": 0.005, "fpr_high": 0.02,
        "drawn": drawn, "probe_status": status, "fdr_probe": value, "fdr_probe_low": low, "fdr_probe_high": high,
    }  # fmt: skip


@pytest.mark.parametrize("look", ["wide", "phone"])
def test_the_probe_stands_beside_the_labels(window: Any, console: Console, look: str) -> None:
    """Where denials were drawn there is a column for what they show, or why they show nothing; no figure is cut off."""
    rows = [
        probed("ip", 0, "off"),
        probed("user", 50, "report only", 0.4, 0.27, 0.55),
        probed("device", 12, "insufficient"),
        probed("a_very_long_name_of_a_dimension", 80, "indistinct"),
    ]
    answer = {"from": 1, "to": 2, "matures_s": None, "rows": rows}
    options: dict[str, Any] = {"viewport": PHONE, "is_mobile": True} if look == "phone" else {}
    page = window(**options).page
    page.route("**/api/v1/rates*", lambda route: route.fulfill(json=answer))
    page.goto(console.address)
    page.wait_for_selector("#rates td")
    told = " ".join(page.inner_text("#rates").split())
    assert "40 % 27 % to 55 % under 100" in told
    for words in ("not drawn", "12 denials drawn", "abusers pass the challenge, too"):
        assert words in told
    assert accessibility(page) == []
    wide = """() => [...document.querySelectorAll("main table")]
        .filter((one) => !one.closest(".scroll")
            && one.getBoundingClientRect().right > one.closest(".panel").getBoundingClientRect().right)
        .map((one) => `${one.closest(".panel").id}: ${one.innerText}`)"""
    assert page.evaluate(wide) == []
    answer["rows"] = rows[:1]
    page.select_option("#rates select", "7d")
    page.wait_for_selector("#rates th:has-text('by probe')", state="detached")


def test_servers_that_go_away(browser: Browser, world: World) -> None:
    """A console that ends is told on the page, which comes back by itself with the next one."""
    window = Window(browser)
    with Console(world.settings) as first:
        page = window.page
        page.goto(first.address)
        page.wait_for_selector(".verdict.ok, .verdict.watch")
        first.stop()
        page.wait_for_selector(".headline:has-text('The console does not answer.')")
        assert "lost" in page.title()
    with Console(world.settings, port=first.port):
        page.wait_for_selector(".headline:has-text('All is in order.')")
    window.close()


def test_a_console_started_again_with_another_token(browser: Browser, world: World) -> None:
    """The page asks for the new token, over whatever was open, as long as it takes to type it; then all is there."""
    window = Window(browser)
    with Console(world.settings) as first:
        page = open_page(lambda: window, first, "subject=user:greedy-1")
        first.stop()
        page.wait_for_selector(".headline:has-text('The console does not answer.')")
    with Console(world.settings, port=first.port, token="opens-nothing-but-tests-either") as second:  # noqa: S106 - so
        page.wait_for_selector("[name=token]")
        assert not page.is_visible("dialog")
        asked = now_ms()
        block_until(lambda: now_ms() - asked > 2500, what="time to look for the token")
        page.click("[name=token]")
        page.keyboard.type(second.token)
        page.keyboard.press("Enter")
        page.wait_for_selector(".headline:has-text('All is in order.')")
        page.wait_for_selector("#blocks > table td")
    window.close()
