"""Large pages are asked for where there is something to ask for, and nowhere else."""

from __future__ import annotations

import mmap
from typing import TYPE_CHECKING

from penaltybox.processors.huge_pages import PAGE_BYTES, advise

if TYPE_CHECKING:
    from pathlib import Path


def test_private_memory_is_advised_and_keeps_its_contents() -> None:
    """At least the memory that this test holds; what is in it stays."""
    held = mmap.mmap(-1, 8 * PAGE_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    held[:5] = b"still"
    held[-4:] = b"here"
    assert advise() >= 6 * PAGE_BYTES
    assert (held[:5], held[-4:]) == (b"still", b"here")
    held.close()


def test_files_and_shared_memory_are_left_alone(tmp_path: Path) -> None:
    """Mappings of files, read-only memory and what is smaller than a page are nothing to ask for."""
    maps = tmp_path / "maps"
    maps.write_text(
        "7f0000000000-7f0000800000 r-xp 00000000 08:01 1234 /usr/lib/libc.so\n"
        "7f0001000000-7f0001800000 rw-s 00000000 00:01 99 /dev/shm/x\n"
        "7f0002000000-7f0002001000 rw-p 00000000 00:00 0 \n"
        "7ffd00000000-7ffd00800000 rw-p 00000000 00:00 0 [stack]\n"
    )
    assert advise(maps) == 0
    assert advise(tmp_path / "absent") == 0
