"""A process that touches files of a mount for the effect in the kernel.

It loads their pages, drops them, or looks the files up. All of this is done from outside: a server
that touches its own mount waits for its own answers. The process loads a file's pages by an advice
on the open file (`POSIX_FADV_WILLNEED`), and drops them by another one (`POSIX_FADV_DONTNEED`),
which makes no request and keeps the attributes.

The process is started when it is first needed. Where it cannot be started, or has died, nothing is
done, the log says so, and the next call tries again.
"""

from __future__ import annotations

import logging
import os
import select
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final, Protocol

log = logging.getLogger(__name__)

_PROGRAM: Final = Path(__file__).with_name("page_helper_process.py")
_BATCH_BYTES: Final = 1 << 15
"""Bytes of paths in a batch: some hundreds of files, some milliseconds.

A pipe takes a batch at once, and calls of two threads take turns.
"""
_LOOK_S: Final = 0.2
"""The time between two checks of a waiting call whether the helper was closed."""
_END_TIMEOUT_S: Final = 1.0
_READAHEAD_BYTES: Final = 128 << 10
"""The most that an advice reads of a file, unless the file system's readahead size was changed."""


class Helper(Protocol):
    """The calls that page fillers make to the process."""

    def load(self, paths: bytes) -> bool: ...

    def drop(self, paths: bytes) -> bool: ...

    def stat(self, paths: bytes) -> bool: ...


class PageHelper:
    r"""The helper process of a mount.

    Thread-safe. Calls block until the work is done, so a thread that the mount needs for its
    answers must not make them. Paths are relative to the mountpoint, each ended by a NUL:
    `Snapshot.paths_text(inodes, b"\0")`. Missing files are skipped.
    """

    def __init__(
        self,
        mountpoint: Path,
        own_pids: set[int] | None = None,
        readahead_bytes: int = _READAHEAD_BYTES,
    ) -> None:
        """Create it.

        The process's id is in `own_pids` while it lives. `readahead_bytes` is what one advice on a
        file reads.
        """
        self._mountpoint, self._readahead_bytes = mountpoint, readahead_bytes
        self._own_pids: set[int] = set() if own_pids is None else own_pids
        self._turn = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._closed = False

    def load(self, paths: bytes) -> bool:
        """Let the kernel read the files into the page cache, and wait for their last pages.

        False as with `drop`, or if a file cannot be read.
        """
        return all([self._answer(b"W", batch) == b"." for batch in _batches(paths)])

    def drop(self, paths: bytes) -> bool:
        """Let the kernel drop the files' pages, and keep their names and attributes.

        Takes about 6 µs a file. Pages that are being read just now may stay. False if the process
        could not do it, or this was closed.
        """
        return all([self._answer(b"D", batch) == b"." for batch in _batches(paths)])

    def stat(self, paths: bytes) -> bool:
        """Let the kernel know the files' inodes: a request for each that it does not know.

        False as with `drop`.
        """
        return all([self._answer(b"L", batch) == b"." for batch in _batches(paths)])

    def close(self, timeout_s: float = _END_TIMEOUT_S) -> None:
        """End the process, and calls that wait for it. Later calls return False."""
        deadline = time.monotonic() + timeout_s
        self._closed = True
        process = self._process
        if process is not None:
            process.kill()
        # A call gives up its turn soon. The process ends at once, unless it waits for an answer
        # that the caller owes it.
        if self._turn.acquire(timeout=timeout_s):
            try:
                self._end(max(0.0, deadline - time.monotonic()))
            finally:
                self._turn.release()

    def _answer(self, command: bytes, batch: bytes) -> bytes:
        """Return the process's answer, or nothing."""
        with self._turn:
            if self._closed:
                return b""
            try:
                if self._process is None:
                    self._process = self._start()
                answer = self._ask(self._process, command, batch)
                if answer:
                    return answer
            except OSError as error:
                self._complain(error)
            else:
                self._complain("its helper process has ended")
            self._end()
            return b""

    def _complain(self, reason: object) -> None:
        if not self._closed:
            log.warning("a batch of files for the page cache failed: %s", reason)

    def _start(self) -> subprocess.Popen[bytes]:
        arguments = [os.fspath(self._mountpoint), str(self._readahead_bytes)]
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", os.fspath(_PROGRAM), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
            cwd="/",
            start_new_session=True,  # Ctrl-C is for the daemon
        )
        self._own_pids.add(process.pid)
        return process

    def _ask(self, process: subprocess.Popen[bytes], command: bytes, batch: bytes) -> bytes:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(command + len(batch).to_bytes(4, "little") + batch)
        answers = select.poll()
        answers.register(process.stdout, select.POLLIN)
        while not answers.poll(_LOOK_S * 1000):
            if self._closed:
                return b""
        return process.stdout.read(1) or b""

    def _end(self, timeout_s: float = _END_TIMEOUT_S) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.kill()
        for pipe in (process.stdin, process.stdout):
            assert pipe is not None
            pipe.close()
        try:
            process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            log.warning("the helper process %d of the page cache does not end", process.pid)
        self._own_pids.discard(process.pid)


def _batches(paths: bytes) -> Iterator[bytes]:
    start = 0
    while start < len(paths):
        end = paths.rfind(b"\0", start, start + _BATCH_BYTES) + 1
        if not end:
            raise ValueError("paths are ended by a NUL, each")
        yield paths[start:end]
        start = end
