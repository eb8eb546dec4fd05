"""What the kernel holds of a mount's files: makes it drop their pages, or learn their inodes.

Both are done from outside, by a process that touches the files through the mount (`kernel_pages_process`): the daemon would wait for its own
answers. FUSE has a call to drop a file's pages (`invalidate_inode`), but it forgets the attributes too, and the file's next open would cost
a request; an advice on an open file (`POSIX_FADV_DONTNEED`) drops the pages only, and makes no request at all.

The process is started when it is first needed. Where it can't be started, or has died, nothing is dropped or looked up, the log says so, and
the next call tries again.
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
from typing import Final

log = logging.getLogger(__name__)

_PROGRAM: Final = Path(__file__).with_name("kernel_pages_process.py")
_BATCH_BYTES: Final = 1 << 15
"""Of paths: some hundreds of files, some milliseconds. A pipe takes it at once, and calls of two threads take turns."""
_LOOK_S: Final = 0.2
"""How often a waiting call looks whether this was closed."""
_END_TIMEOUT_S: Final = 1.0


class KernelPages:
    """Thread-safe. Calls block until it is done, so they must not be made by a thread that the mount needs for its answers.

    Paths are relative to the mountpoint, each ended by a NUL: `Snapshot.paths_text(inodes, b"\\0")`. They lead into the epoch that the
    mount shows now. Files that are not there are passed over.
    """

    def __init__(self, mountpoint: Path) -> None:
        self._mountpoint = mountpoint
        self._turn = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._closed = False

    def drop(self, paths: bytes) -> bool:
        """Let the kernel drop the files' pages, and keep their names and attributes. About 6 µs a file.

        Pages that are being read just now may stay. False if the process could not do it, or this was closed.
        """
        return all(self._done(b"D", batch) for batch in _batches(paths))

    def look_up(self, paths: bytes) -> bool:
        """Let the kernel know the files' inodes: a request for each that it does not know. False as with `drop`."""
        return all(self._done(b"L", batch) for batch in _batches(paths))

    def close(self, timeout_s: float = _END_TIMEOUT_S) -> None:
        """End the process, and calls that wait for it. Later calls return False."""
        deadline = time.monotonic() + timeout_s
        self._closed = True
        process = self._process
        if process is not None:
            process.kill()
        # A call gives up its turn soon; the process ends at once unless it waits for an answer that the caller owes it.
        if self._turn.acquire(timeout=timeout_s):
            try:
                self._end(max(0.0, deadline - time.monotonic()))
            finally:
                self._turn.release()

    def _done(self, command: bytes, batch: bytes) -> bool:
        with self._turn:
            if self._closed:
                return False
            try:
                if self._process is None:
                    self._process = self._start()
                if self._is_answered(self._process, command, batch):
                    return True
            except OSError as error:
                self._complain(error)
            else:
                self._complain("the process that does it has ended")
            self._end()
            return False

    def _complain(self, reason: object) -> None:
        if not self._closed:
            log.warning("the page cache is not tended this time: %s", reason)

    def _start(self) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [sys.executable, "-I", "-S", os.fspath(_PROGRAM), os.fspath(self._mountpoint)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
            cwd="/",
            start_new_session=True,  # Ctrl-C is for the daemon
        )

    def _is_answered(self, process: subprocess.Popen[bytes], command: bytes, batch: bytes) -> bool:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(command + len(batch).to_bytes(4, "little") + batch)
        answers = select.poll()
        answers.register(process.stdout, select.POLLIN)
        while not answers.poll(_LOOK_S * 1000):
            if self._closed:
                return False
        return bool(process.stdout.read(1))

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
            log.warning("process %d, which tends the page cache, does not end", process.pid)


def _batches(paths: bytes) -> Iterator[bytes]:
    start = 0
    while start < len(paths):
        end = paths.rfind(b"\0", start, start + _BATCH_BYTES) + 1
        if not end:
            raise ValueError("paths are ended by a NUL, each")
        yield paths[start:end]
        start = end
