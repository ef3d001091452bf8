"""When a browser painted the console's page, by its own clock, with as many blocks as one likes."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, NamedTuple

from redis import Redis

from penaltybox.contracts.keyspace import Keyspace

if TYPE_CHECKING:
    from playwright.sync_api import Page

    from penaltybox.contracts.settings import Settings

_FIRST = "performance.getEntriesByName('first-contentful-paint')[0]?.startTime"
_BLOCKLIST = """() => new Promise(resolve => new PerformanceObserver(
    list => resolve(list.getEntries()[0].renderTime)).observe({type: "element", buffered: true}))"""


class Paint(NamedTuple):
    """Milliseconds from the navigation: first contentful paint, and the blocklist on the screen."""

    first_ms: float
    blocklist_ms: float


def fill(settings: Settings, blocks: int, now_ms: int) -> None:
    """So many blocks in Redis, as any program may write them."""
    keys = Keyspace(settings.redis_prefix)
    client = Redis.from_url(settings.redis_url)
    pipeline = client.pipeline(transaction=False)
    for number in range(blocks):
        (key,) = keys.subject_keys([f"user:somebody-{number}"], "block")
        until = now_ms + 600_000 + number * 1000
        value = {"until": until, "rung": "1h", "rule": "user_abuse", "penalty": f"{number:032x}"}
        pipeline.set(key, json.dumps(value), pxat=until)
    pipeline.execute()
    client.close()


def paint(page: Page, address: str) -> Paint:
    """Loads the page, and returns when it was painted."""
    page.goto("about:blank")
    page.goto(address)
    blocklist_ms = page.evaluate(_BLOCKLIST)
    return Paint(page.evaluate(_FIRST), blocklist_ms)
