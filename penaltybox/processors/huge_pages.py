"""Large pages for a worker's memory: with hundreds of thousands of states the processor mostly waits for addresses.

Linux gives large pages (2 MiB) to those who ask for them; the interpreter does not ask. Elsewhere, and where the
kernel says no, nothing happens.
"""

from __future__ import annotations

import asyncio
import ctypes
import sys
from pathlib import Path
from typing import Final

PAGE_BYTES: Final = 2 << 20
FIRST_S, LONGEST_S = 1.0, 60.0
_MADV_HUGEPAGE: Final = 14
_MADV_COLLAPSE: Final = 25  # Linux 6.1: at once, instead of when the kernel gets to it


def advise(maps: Path = Path("/proc/self/maps")) -> int:
    """Asks for large pages behind all private anonymous memory of this process; how many bytes that is."""
    if sys.platform != "linux" or not maps.exists():
        return 0
    madvise = ctypes.CDLL(None, use_errno=True).madvise
    madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    advised = 0
    for start, end in _anonymous(maps.read_text(encoding="ascii", errors="replace")):
        first = -(-start // PAGE_BYTES) * PAGE_BYTES
        length = (end - first) // PAGE_BYTES * PAGE_BYTES
        if length <= 0:
            continue
        if madvise(first, length, _MADV_HUGEPAGE) == 0:
            madvise(first, length, _MADV_COLLAPSE)
            advised += length
    return advised


def _anonymous(maps: str) -> list[tuple[int, int]]:
    found = []
    for line in maps.splitlines():
        span, rights, _, _, inode, *name = line.split(maxsplit=5)
        if rights == "rw-p" and inode == "0" and (not name or name[0] == "[heap]"):
            start, end = span.split("-")
            found.append((int(start, 16), int(end, 16)))
    return found


async def keep_advising() -> None:
    """Asks again while the memory grows, for ever, less and less often: in a thread, for the kernel takes its time."""
    pause_s = FIRST_S
    while True:
        await asyncio.sleep(pause_s)
        await asyncio.to_thread(advise)
        pause_s = min(pause_s * 2, LONGEST_S)
