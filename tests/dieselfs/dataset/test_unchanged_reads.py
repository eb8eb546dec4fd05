"""When a file counts as unchanged, and when it is old enough to tell."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from chunkstore.errors import BadSource
from dieselfs.dataset import unchanged_reads
from dieselfs.dataset.unchanged_reads import (
    SourceChanged,
    check_unchanged,
    read_unchanged,
    settle,
)


@pytest.fixture
def file(tmp_path: Path) -> Iterator[int]:
    fd = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    os.write(fd, b"before")
    yield fd
    os.close(fd)


def nothing() -> None:
    pass


@pytest.mark.parametrize(
    "change",
    [
        lambda fd: os.pwrite(fd, b"after_", 0),
        lambda fd: os.ftruncate(fd, 3),
        lambda fd: os.pwrite(fd, b"more", 6),
    ],
    ids=["in place", "shorter", "longer"],
)
def test_a_change_is_noticed_once_a_file_is_settled(
    file: int, change: Callable[[int], object]
) -> None:
    before = os.fstat(file)
    settle(file, before, nothing)
    check_unchanged(file, before)
    change(file)
    with pytest.raises(SourceChanged):
        check_unchanged(file, before)


def test_an_mtime_that_is_set_back_hides_no_change(file: int) -> None:
    before = os.fstat(file)
    settle(file, before, nothing)
    os.pwrite(file, b"after_", 0)
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    with pytest.raises(SourceChanged):
        check_unchanged(file, before)


def test_a_young_file_is_waited_for_and_an_old_one_is_not(file: int) -> None:
    before = os.fstat(file)
    settle(file, before, nothing)
    assert time.time_ns() - before.st_ctime_ns >= unchanged_reads._TICK_NS
    asked: list[None] = []
    settle(file, before, lambda: asked.append(None))
    assert asked == []


def test_a_ctime_in_the_future_is_waited_for_once(
    file: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The clock of a file server may be ahead by an hour."""
    monkeypatch.setattr(time, "time_ns", lambda: 1)
    began = time.monotonic_ns()
    settle(file, os.fstat(file), nothing)
    assert time.monotonic_ns() - began >= unchanged_reads._TICK_NS


def test_a_change_during_the_wait_is_noticed(file: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "time_ns", lambda: 1)  # so it waits, however slow this machine is
    with pytest.raises(SourceChanged):
        settle(file, os.fstat(file), lambda: os.ftruncate(file, 1))


def test_whole_seconds_are_the_mark_of_a_coarse_clock() -> None:
    assert unchanged_reads._tick_ns(5_000_000_000) == unchanged_reads._COARSE_NS
    assert unchanged_reads._tick_ns(5_000_000_001) == unchanged_reads._TICK_NS


def test_a_file_that_changes_during_each_read_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"a")
    assert read_unchanged(path)[0] == b"a"
    real = unchanged_reads.settle

    def settle_and_append(fd: int, status: os.stat_result, check: Callable[[], None]) -> None:
        real(fd, status, check)
        with path.open("ab") as file:
            file.write(b"a")

    monkeypatch.setattr(unchanged_reads, "settle", settle_and_append)
    with pytest.raises(BadSource, match="log changed each of the 3 times"):
        read_unchanged(path)
