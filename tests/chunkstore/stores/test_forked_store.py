from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from chunkstore.errors import Unavailable
from chunkstore.stores import forked_store
from chunkstore.stores.forked_store import ForkedStore, StoreProcess
from chunkstore.stores.local_directory import LocalDirectory
from chunkstore.stores.memory import MemoryObjectStore
from tests.open_descriptors import open_descriptors


class CallAtLoad(MemoryObjectStore):
    """A store whose pickle makes the process that loads it call a function."""

    def __init__(self, function: Callable[..., Any], *arguments: Any) -> None:
        super().__init__()
        self._call = function, arguments

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return self._call


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[subprocess.Popen[bytes]]:
    """The processes that the test has started."""
    processes = []

    def start(*arguments: Any) -> subprocess.Popen[bytes]:
        processes.append(start_process(*arguments))
        return processes[-1]

    start_process = forked_store._start_process
    monkeypatch.setattr(forked_store, "_start_process", start)
    return processes


def test_a_process_that_does_not_start_is_killed_and_reaped(
    monkeypatch: pytest.MonkeyPatch, started: list[subprocess.Popen[bytes]]
) -> None:
    monkeypatch.setattr(forked_store, "_START_TIMEOUT_S", 0.3)
    before = open_descriptors()
    with pytest.raises(TimeoutError) as caught:  # it keeps the frames, and what they refer to
        StoreProcess(CallAtLoad(time.sleep, 60))
    assert [process.returncode for process in started] == [-signal.SIGKILL]
    assert open_descriptors() <= before
    assert caught.value.__traceback__ is not None


def test_a_process_that_ends_at_its_start_is_reaped(
    monkeypatch: pytest.MonkeyPatch, started: list[subprocess.Popen[bytes]]
) -> None:
    monkeypatch.setattr(forked_store, "_used_in", os.getppid())
    before = open_descriptors()
    with pytest.raises(Unavailable, match="cannot start the process that calls the store"):
        ForkedStore(CallAtLoad(os._exit, 3)).stat("key")
    assert all(process.returncode is not None for process in started)
    assert len(started) == 1
    assert open_descriptors() <= before


def test_a_connection_that_fails_is_closed(
    tmp_path: Path, started: list[subprocess.Popen[bytes]]
) -> None:
    store = LocalDirectory(tmp_path)
    store.create("key", [b"content"])
    process = StoreProcess(store)
    assert process.call("get", "key") == b"content"
    [connection] = process._idle
    started[0].kill()
    started[0].wait()
    with pytest.raises((OSError, EOFError)):
        process.call("get", "key")
    assert connection.closed
    assert process._idle == []
    before = open_descriptors()
    with pytest.raises(OSError):  # a new connection cannot be passed on either
        process.call("get", "key")
    assert open_descriptors() <= before
    process._control.close()
