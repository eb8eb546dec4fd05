"""The trace recorder: it writes what cache policies see to a file, bounded in size.

A reader appends to a list in memory. A thread of the recorder writes the list to the file once a
second, so a process that is killed loses a second. The recorder never raises: if the file is full,
or cannot be written, it stops with one line in the log.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from chunkstore.after_fork import renew_after_fork
from chunkstore.ssd.policy_events import Observed
from dieselfs.cache.advice.trace_file import TraceEncoder, head, new_file
from dieselfs.errors import LocalFileError, UsageError

log = logging.getLogger(__name__)

DEFAULT_TRACE_BYTES: Final = 64 << 20
"""2.8 million requests: 11 TB of chunks of 4 MiB."""
MIN_TRACE_BYTES: Final = 64 << 10
FLUSH_S: Final = 1.0
_MOST_PENDING: Final = 1 << 18
"""Events that wait for a disk that does not answer; further ones are not recorded."""
_LEAST_CLOSE_S: Final = 0.5
"""The time for the last requests, at the least: a disk that answers needs some milliseconds."""
_AT_ONCE: Final = 4096
"""Events that are encoded at a time, so that a file is filled nearly to its limit."""


@dataclass(frozen=True, slots=True)
class TraceSettings:
    """The file of a recorder and its limit."""

    file: Path
    most_bytes: int = DEFAULT_TRACE_BYTES

    def __post_init__(self) -> None:
        if self.most_bytes < MIN_TRACE_BYTES:
            raise UsageError(
                f"--record-trace-size of {self.most_bytes} bytes", "give 64KiB at least"
            )

    def check(self) -> None:
        """Raise `LocalFileError` if there is no folder in which to create the file."""
        folder = self.file.parent
        if not folder.is_dir():
            raise LocalFileError(
                f"cannot record a trace to {self.file}: there is no folder {folder}",
                "create the folder, or name another file",
            )
        if not os.access(folder, os.W_OK | os.X_OK) or self.file.is_dir():
            raise LocalFileError(
                f"cannot record a trace to {self.file}: no file can be created there",
                "name another file",
            )


class Recorder:
    """A recorder of one process. Thread-safe; implements `policy_events.Observer`.

    A forked child does not record.
    """

    def __init__(
        self,
        settings: TraceSettings,
        clock: Callable[[], float] = time.monotonic,
        started_ns: int | None = None,
    ) -> None:
        """Create the file and begin; without a file nothing is recorded. See `new_file`."""
        self._most_bytes, self._clock = settings.most_bytes, clock
        self._pending: deque[tuple[float, Observed]] = deque()
        self._encoder = TraceEncoder()
        self._writing = threading.Lock()
        self._ended = threading.Event()
        self._began_s = clock()
        self._is_recording = True
        self._fd: int | None = None
        self._bytes = self.dropped = 0
        self.path = settings.file
        """The file that is written; its name may have a number at its end."""
        try:
            self.path, self._fd = new_file(settings.file)
            self._write(head(time.time_ns() if started_ns is None else started_ns))
        except OSError as error:
            self._stop()
            log.warning("no trace is recorded: %s: %s", self.path, error.strerror or error)
            return
        log.info("requests are recorded to %s", self.path)
        renew_after_fork(self)
        self._thread = threading.Thread(target=self._run, name="trace", daemon=True)
        self._thread.start()

    def __call__(self, event: Observed) -> None:
        """Take note of an event; any thread calls it. Takes 0.2 µs."""
        if self._is_recording:
            if len(self._pending) < _MOST_PENDING:
                self._pending.append((self._clock(), event))
            else:
                self.dropped += 1

    @property
    def is_recording(self) -> bool:
        """False after the file was full, could not be written, or was closed."""
        return self._is_recording

    def renew(self) -> None:
        """Stop in a forked child, whose parent goes on with the file."""
        self._is_recording, self._fd = False, None
        self._pending = deque()
        self._writing = threading.Lock()

    def flush(self) -> None:
        """Write what is pending; stop if that fails."""
        with self._writing:
            try:
                while self._pending and self._is_recording:
                    self._write_some()
            except OSError as error:
                self._stop()
                log.warning("the trace %s ends here: %s", self.path, error.strerror or error)
            except Exception:
                self._stop()
                log.exception("the trace %s ends here", self.path)

    def close(self, timeout_s: float = 1.0) -> None:
        """Write what is pending, and end. A disk that does not answer is waited for so long."""
        self._ended.set()
        if self._is_recording:
            self._thread.join(max(timeout_s, _LEAST_CLOSE_S))
            if self.dropped:
                log.warning("the trace %s lacks %d requests", self.path, self.dropped)
        if self._writing.acquire(timeout=timeout_s):
            self._stop()
            self._writing.release()

    def _run(self) -> None:
        while self._is_recording and not self._ended.wait(FLUSH_S):
            self.flush()
        self.flush()

    def _write_some(self) -> None:
        count = min(len(self._pending), _AT_ONCE)
        events = [self._pending.popleft() for _ in range(count)]
        data = self._encoder.encode((at - self._began_s, event) for at, event in events)
        if self._bytes + len(data) > self._most_bytes:
            self._stop()
            log.info("the trace %s has reached its size and ends here", self.path)
        else:
            self._write(data)

    def _write(self, data: bytes) -> None:
        assert self._fd is not None
        left = memoryview(data)
        while left:
            left = left[os.write(self._fd, left) :]
        self._bytes += len(data)

    def _stop(self) -> None:
        self._is_recording = False
        self._pending.clear()
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None
