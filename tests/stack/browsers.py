"""The system's Chromium, driven by Playwright: pages that complain about nothing."""

from __future__ import annotations

import shutil
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import sync_playwright

if TYPE_CHECKING:
    from collections.abc import Iterator

    from playwright.sync_api import Browser, Page

WIDE = {"width": 1280, "height": 900}
PHONE = {"width": 390, "height": 844}


@contextmanager
def chromium() -> Iterator[Browser]:
    """A browser; nothing is downloaded. As root it has no sandbox of its own."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        try:
            yield browser
        finally:
            browser.close()


class Window:
    """A page in a context of its own, and everything that the browser had to say about it."""

    def __init__(self, browser: Browser, **options: Any) -> None:
        self._context = browser.new_context(viewport=options.pop("viewport", WIDE), **options)
        self._context.set_default_timeout(90_000)
        self.page: Page = self._context.new_page()
        self.complaints: list[str] = []
        self.page.on("console", lambda message: self.complaints.append(f"{message.type}: {message.text}"))
        self.page.on("pageerror", lambda error: self.complaints.append(f"error: {error}"))

    def close(self) -> None:
        """Closes it."""
        self._context.close()


def accessibility(page: Page) -> list[str]:
    """What axe-core finds against WCAG 2.2 A and AA, and its best practices: rule, why, where."""
    found = Axe().run(page, options={"resultTypes": ["violations"]}).response["violations"]
    return [f"{one['id']}: {one['help']}: {[node['target'] for node in one['nodes']][:4]}" for one in found]
