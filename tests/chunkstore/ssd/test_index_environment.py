"""The LMDB environment of an SSD index: what a fork waits for."""

from __future__ import annotations

import threading
from pathlib import Path
from queue import SimpleQueue

import pytest

from chunkstore.ssd import index_environment
from tests.eventually import PATIENCE_S


def test_a_fork_waits_for_running_transactions_and_new_ones_wait_for_the_fork(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(index_environment, "_END_S", PATIENCE_S)
    events, closed = SimpleQueue[str](), SimpleQueue[bool]()
    may_end = {name: threading.Event() for name in ("running", "new")}

    class Noting(threading.Condition):
        def wait(self, timeout: float | None = None) -> bool:
            events.put(f"{threading.current_thread().name} waits")
            return super().wait(timeout)

    environment = index_environment.acquire(tmp_path / "indexes" / "a", tmp_path)
    environment._changed = Noting()

    def transact() -> None:
        name = threading.current_thread().name
        with environment.begin():
            events.put(f"{name} runs")
            assert may_end[name].wait(PATIENCE_S)

    def fork() -> None:
        environment.suspend()
        closed.put(environment._environment is None)
        environment.resume()

    def started(name: str) -> threading.Thread:
        thread = threading.Thread(target=fork if name == "fork" else transact, name=name)
        thread.start()
        return thread

    threads = []
    try:
        for name, event in (("running", "runs"), ("fork", "waits"), ("new", "waits")):
            threads.append(started(name))
            assert events.get(timeout=PATIENCE_S) == f"{name} {event}"
        may_end["running"].set()
        assert closed.get(timeout=PATIENCE_S)
    finally:
        for end in may_end.values():
            end.set()
        for thread in threads:
            thread.join(PATIENCE_S)
        index_environment.release(environment)
    assert not any(thread.is_alive() for thread in threads)
