"""What a mount does for the page cache, while a newer snapshot takes its place."""

from __future__ import annotations

import errno
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from dieselfs.fuse import page_cache
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


def test_a_mount_without_inotify_instances_serves_without_prefill(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refused(folder: Path) -> None:
        raise OSError(errno.EMFILE, "Too many open files", "inotify")

    monkeypatch.setattr(page_cache, "CloseEvents", refused)
    cache = PageCache(cast(Any, None), cast(Any, None), tmp_path, None)
    front = SimpleNamespace(readahead_bytes=4096)
    cache.start(cast(Any, front), lambda: False, lambda inode: None)
    cache.note_read(5, 1)
    assert "fs.inotify.max_user_instances" in caplog.text
    cache.stop()
