"""Watched files, by the real kernel."""

import ctypes
import errno
import os
import select
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from dieselfs.prefetch import close_events
from dieselfs.prefetch.close_events import CloseEvents
from tests.open_descriptors import open_descriptors

FILES = 50


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "sub").mkdir()
    for number in range(FILES):
        (tmp_path / "sub" / f"{number}").write_bytes(b"content")
    return tmp_path


@pytest.fixture
def events(folder: Path) -> Iterator[CloseEvents]:
    found = CloseEvents(folder)
    yield found
    found.close()


def path(number: int) -> bytes:
    return b"sub/%d" % number


def read(folder: Path, number: int) -> None:
    (folder / "sub" / f"{number}").read_bytes()


def is_readable(events: CloseEvents) -> bool:
    return bool(select.select([events.fd], [], [], 0)[0])


def test_closed_files_are_told_once_in_their_order(events: CloseEvents, folder: Path) -> None:
    for number in range(0, FILES, 10):
        assert events.watch(number, path(number))
    assert len(events) == 5
    assert not is_readable(events)
    assert events.take() == []
    for number in reversed(range(FILES)):
        read(folder, number)
    assert is_readable(events)
    assert events.take() == [40, 30, 20, 10, 0]
    assert not is_readable(events)
    assert len(events) == 0
    read(folder, 10)
    assert events.take() == []
    assert events.watch(10, path(10)), "it may be watched again"


def test_a_file_that_is_open_is_told_when_it_is_closed(events: CloseEvents, folder: Path) -> None:
    with (folder / "sub" / "3").open("rb"):
        assert events.watch(3, path(3))
        assert events.take() == []
    assert events.take() == [3]


def test_a_look_at_a_file_is_no_reader(events: CloseEvents, folder: Path) -> None:
    assert events.watch(3, path(3))
    os.stat(folder / "sub" / "3")
    os.access(folder / "sub" / "3", os.R_OK)
    assert events.take() == []


def test_what_is_unwatched_is_not_told(events: CloseEvents, folder: Path) -> None:
    for number in range(4):
        assert events.watch(number, path(number))
    read(folder, 0)
    events.unwatch(0)
    events.unwatch(1)
    events.unwatch(1)
    events.unwatch(33)
    for number in range(4):
        read(folder, number)
    assert events.take() == [2, 3]


def test_clearing_forgets_all(events: CloseEvents, folder: Path) -> None:
    for number in range(4):
        assert events.watch(number, path(number))
    read(folder, 0)
    events.clear()
    read(folder, 1)
    assert events.take() == []
    assert len(events) == 0
    assert events.watch(2, path(2))
    read(folder, 2)
    assert events.take() == [2]


def test_what_is_not_there_is_not_watched(events: CloseEvents, folder: Path) -> None:
    assert not events.watch(1, b"sub/absent")
    assert not events.watch(1, b"absent/1")
    assert not events.is_full
    assert len(events) == 0


def test_one_file_has_one_position(events: CloseEvents, folder: Path) -> None:
    assert events.watch(1, path(1))
    assert not events.watch(2, path(1))
    read(folder, 1)
    assert events.take() == [1]


def test_a_file_that_is_deleted_is_forgotten(events: CloseEvents, folder: Path) -> None:
    assert events.watch(1, path(1))
    (folder / "sub" / "1").unlink()
    assert events.take() == []
    assert len(events) == 0


def test_the_limit_is_said(
    events: CloseEvents,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    assert events.watch(0, path(0))

    class Full:
        def inotify_add_watch(self, *arguments: object) -> int:
            ctypes.set_errno(errno.ENOSPC)
            return -1

        inotify_rm_watch = staticmethod(close_events._libc.inotify_rm_watch)

    with monkeypatch.context() as patched:
        patched.setattr(close_events, "_libc", Full())
        for number in (1, 2):
            assert not events.watch(number, path(number))
            assert events.is_full
    assert caplog.text.count("max_user_watches") == 1
    read(folder, 0)
    assert events.take() == [0]
    assert events.watch(1, path(1))
    assert not events.is_full


def test_it_may_be_closed_twice(folder: Path) -> None:
    before = open_descriptors()
    events = CloseEvents(folder)
    assert events.watch(1, path(1))
    events.close()
    events.close()
    assert open_descriptors() <= before
    assert not events.watch(2, path(2))
    assert events.take() == []
    events.unwatch(1)


def test_many_events_at_once(folder: Path, events: CloseEvents) -> None:
    count = 6000
    for number in range(count):
        (folder / f"x{number}").write_bytes(b"")
        assert events.watch(number, b"x%d" % number)
    for number in range(count):
        with (folder / f"x{number}").open("rb"):
            pass
    assert events.take() == list(range(count))


def test_a_watch_costs_microseconds(folder: Path, events: CloseEvents) -> None:
    best_s = 1.0
    for _ in range(20):
        began = time.perf_counter()
        for number in range(FILES):
            events.watch(number, path(number))
        events.clear()
        best_s = min(best_s, time.perf_counter() - began)
    assert best_s / FILES < 200e-6
