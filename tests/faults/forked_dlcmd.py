"""`dlcmd` in a process of its own, forked from the test so that it starts in milliseconds, and
killed where the test says."""

from __future__ import annotations

import logging
import os
import select
import socket
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chunkstore.group_commit import GroupCommit
from dieselfs import assembly
from dieselfs.cli import run_dlcmd
from dieselfs.packing.put_request import PackProgress
from metadata.kv.redis_server import RedisServerStore
from tests.eventually import PATIENCE_S
from tests.faults.killed_calls import KilledIndex, KilledStore, KillPoint, SharedCounts, Trap

END_TIMEOUT_S = PATIENCE_S


@dataclass(frozen=True, slots=True)
class Ended:
    """A command, and every process that it started, is gone."""

    code: int
    """Its exit code; of a killed one the signal, negative."""
    errors: str
    acknowledged: int
    put_calls: int
    packing_calls: int

    @property
    def was_killed(self) -> bool:
        return self.code < 0


class Running:
    """A command under way; `end` waits for it."""

    def __init__(
        self, folder: Path, work: Callable[[SharedCounts, Callable[[], None]], int]
    ) -> None:
        self._counts = SharedCounts()
        self._errors = folder / f"errors-{time.monotonic_ns()}"
        reading, writing = os.pipe()
        self._gate, theirs = socket.socketpair()
        self.pid = os.fork()
        if not self.pid:
            os.close(reading)  # `writing` stays open in every process that comes of this one
            self._gate.close()
            _never_return(self._errors, lambda: work(self._counts, lambda: _wait_at(theirs)))
        os.close(writing)
        theirs.close()
        self._alive = reading

    @property
    def errors(self) -> str:
        """The messages that the command has written so far."""
        return self._errors.read_text(errors="backslashreplace")

    def wait_for_pause(self) -> None:
        """Return when the command waits at its point."""
        self._gate.settimeout(END_TIMEOUT_S)
        assert self._gate.recv(1) == b"p", f"ended before it came there: {self.end()}"

    def go_on(self) -> None:
        self._gate.send(b"g")

    def release(self) -> None:
        """Let a command that nobody has waited for go on, and wait for its end."""
        if self._gate.fileno() >= 0:
            with suppress(BrokenPipeError):
                self.go_on()
            self.end()

    def end(self) -> Ended:
        """When the last of its processes has ended."""
        ready, _, _ = select.select([self._alive], [], [], END_TIMEOUT_S)
        os.close(self._alive)
        self._gate.close()
        _, status = os.waitpid(self.pid, 0 if ready else os.WNOHANG)
        counts = self._counts
        assert ready, f"the command does not end; it said {self.errors!r}"
        return Ended(
            os.waitstatus_to_exitcode(status),
            self.errors,
            counts.acknowledged,
            counts.calls(False),
            counts.calls(True),
        )


def _wait_at(gate: socket.socket) -> None:
    gate.send(b"p")
    gate.recv(1)


def _never_return(errors: Path, work: Callable[[], int]) -> None:
    code = 70
    try:
        sys.stdout = sys.stderr = open(errors, "a", buffering=1)  # noqa: SIM115
        os.dup2(sys.stderr.fileno(), 2)  # for what is said from C
        logging.getLogger().handlers.clear()  # the test's own
        code = work()
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def start_dlcmd(
    folder: Path,
    arguments: Sequence[str],
    point: KillPoint | None = None,
    group_bytes: int | None = None,
    patience_s: float | None = None,
) -> Running:
    """Start `dlcmd arguments` with commits of at most about `group_bytes` and so much patience with
    a single Redis; it dies, or waits, at `point`."""

    def work(counts: SharedCounts, pause: Callable[[], None]) -> int:
        _set_trap(Trap(counts, point, pause), counts)
        if patience_s is not None:
            keywords: Any = RedisServerStore.__init__.__kwdefaults__
            keywords["patience_s"] = patience_s
        if group_bytes is not None:
            defaults: Any = GroupCommit.__init__.__kwdefaults__
            defaults["group_bytes"] = group_bytes
        return run_dlcmd(arguments)

    return Running(folder, work)


def _set_trap(trap: Trap, counts: SharedCounts) -> None:
    """In the child, before it opens anything."""

    def killed(openers: Any, wrap: Any) -> None:
        for scheme, opener in list(openers.items()):
            openers[scheme] = lambda url, opener=opener: wrap(opener(url), trap)

    def changed(progress: PackProgress) -> None:
        counts.acknowledged = progress.files_committed
        progress.on_change(progress)

    killed(assembly._STORES, KilledStore)
    killed(assembly._INDEXES, KilledIndex)
    PackProgress.changed = changed  # type: ignore[method-assign]
