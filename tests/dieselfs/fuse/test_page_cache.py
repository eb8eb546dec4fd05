"""What a mount does for the page cache, while a newer snapshot takes its place."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from dieselfs.fuse.page_cache import PageCache


class Prefill:
    def __init__(self) -> None:
        self.misses: list[int] = []
        self.is_closed = False

    def note_miss(self, chunk: int, thread: int) -> None:
        self.misses.append(chunk)

    def close(self, timeout_s: float) -> None:
        self.is_closed = True


def test_a_read_that_is_answered_while_filling_is_stopped_is_no_error(tmp_path: Path) -> None:
    prefill = Prefill()

    class Source:
        def peek(self, file: object, start: int, length: int) -> memoryview:
            cache.stop()
            return memoryview(b"x")

    snapshot = SimpleNamespace(
        extent=lambda inode: SimpleNamespace(length=100), chunk_number=lambda inode: inode // 4
    )
    cache = PageCache(cast(Any, snapshot), cast(Any, Source()), tmp_path, None)
    cache._prefill = cast(Any, prefill)
    cache.note_read(5, 1)
    assert prefill.misses == [1]
    assert prefill.is_closed
    cache.note_read(5, 1)
    assert prefill.misses == [1], "after the end"
