from __future__ import annotations

from tests.stack.console_world import console, world

__all__ = ["console", "world"]
