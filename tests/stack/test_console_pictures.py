"""The console as the documentation shows it, and how soon it is there. `--screenshots` writes docs/images anew."""

from __future__ import annotations

import io
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from PIL import Image

from penaltybox.cli.console_page.routes import PREFIX
from penaltybox.contracts.clock import now_ms
from penaltybox.contracts.settings import Settings
from tests.servers import fresh_name
from tests.stack.browsers import PHONE, WIDE, Window, chromium
from tests.stack.console_world import Console, World, ordinary, wait_for_blocks
from tests.stack.paint import fill, paint
from tests.waiting import block_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from playwright.sync_api import Browser

pytestmark = [pytest.mark.stack, pytest.mark.any_broker, pytest.mark.slow, pytest.mark.programs("chromium")]
IMAGES = Path(__file__).parents[2] / "docs" / "images"
LOOKS: dict[str, dict[str, Any]] = {
    "console-light": {"viewport": WIDE, "color_scheme": "light"},
    "console-dark": {"viewport": WIDE, "color_scheme": "dark"},
    "console-phone": {"viewport": PHONE, "color_scheme": "light", "is_mobile": True, "has_touch": True},
}
COLOURS = 256
MOST_BYTES = 150_000
BLOCKS = 10_000


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as found:
        yield found


@pytest.fixture(scope="module")
def console(
    broker: Any, redis_server: Any, clickhouse_server: Any, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Console]:
    with World(broker, redis_server, clickhouse_server, tmp_path_factory.mktemp("pictures")) as world:
        world.happen(ordinary(now_ms()))
        with Console(world.settings, "--matures", "30s") as made:
            wait_for_blocks(made, 12)
            yield made


@pytest.mark.parametrize("name", LOOKS)
def test_pictures(browser: Browser, console: Console, name: str, request: pytest.FixtureRequest) -> None:
    """Each look can be pictured, and the committed picture is there, small, and of the same size."""
    window = Window(browser, reduced_motion="reduce", **LOOKS[name])
    page = window.page
    page.goto(console.address)
    page.wait_for_selector("#rates td")
    page.wait_for_selector("#places td")
    page.wait_for_selector("#penalties li")
    page.wait_for_selector(".verdict.ok")
    if name == "console-phone":
        page.evaluate("location.hash = 'subject=device:rack-1'")
        page.wait_for_selector("dialog section")
    taken = Image.open(io.BytesIO(page.screenshot()))
    if request.config.getoption("--screenshots"):
        IMAGES.mkdir(exist_ok=True)
        taken.convert("RGB").quantize(COLOURS, Image.Quantize.MAXCOVERAGE).save(IMAGES / f"{name}.png", optimize=True)
    kept = IMAGES / f"{name}.png"
    assert kept.stat().st_size < MOST_BYTES
    with Image.open(kept) as picture:
        assert picture.size == taken.size
    assert window.complaints == []
    window.close()


def test_first_paint_with_ten_thousand_blocks(
    browser: Browser, redis_server: Any, tmp_path: Path, tell: Callable[[str], None]
) -> None:
    """The page is first painted within a second; how soon its blocklist is, is told. The best of five loads."""
    (tmp_path / "policy.yaml").write_text("rules: {}")
    settings = Settings(
        kafka="127.0.0.1:1", redis_url=redis_server.url, redis_prefix=fresh_name("paint"),
        clickhouse_url="http://127.0.0.1:1", policy=str(tmp_path / "policy.yaml"),
    )  # fmt: skip
    fill(settings, BLOCKS, now_ms())
    with Console(settings) as console:
        block_until(lambda: console.get(f"{PREFIX}/status")["denied"] == BLOCKS, 60)
        window = Window(browser)
        paints = [paint(window.page, console.address) for _ in range(5)]
        window.close()
    best = min(paints)
    tell(f"first paint {best.first_ms:.0f} ms, blocklist painted {best.blocklist_ms:.0f} ms")
    assert best.first_ms <= 1000
