"""The writers of extracted files: this process, and forked processes for many files.

A small file costs five system calls, so writing is bound by the processor, and system calls of a
few microseconds that several threads of one interpreter make take longer than those of one thread.
So processes of their own write batches of files. This process reads and verifies a batch, copies it
into memory that it shares with one of them, and sends the files' names. The processes touch neither
store nor index. On a file system behind a network, calls wait: threads then write beside them.
"""

from __future__ import annotations

import gc
import itertools
import mmap
import os
import queue
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias

from chunkstore.errors import Unavailable
from dieselfs.client.extraction.copies import BATCH_BYTES, Copy
from dieselfs.client.extraction.local_folder import (
    LinkLeadsOutside,
    LocalFolder,
    OutputDirectory,
    renew_temporary_names,
)

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

Content: TypeAlias = bytes | memoryview

_SLOW_S: Final = 1e-3
"""The time for one small file from which on more threads write; a local disk takes 0.05 ms."""
_END_TIMEOUT_S: Final = 5.0
_FOR_THE_PARENT: Final = (signal.SIGINT, signal.SIGTERM)
"""Signals that terminals and init systems send to a whole group of processes."""


FileRow: TypeAlias = tuple[str, str, int, int, int, bool]
"""One file to write: its directory, name, mode, mtime (ns) and size, and whether it is a link.

A plain tuple costs a third of what a named one costs to make and to send.
"""


def row_of(copy: Copy) -> FileRow:
    """Return the row of a copy."""
    entry = copy.entry
    parent, _, name = copy.target.rpartition("/")
    return parent, name, entry.mode, entry.mtime_ns, entry.size, entry.kind == "link"


@dataclass(slots=True)
class Written:
    """The result of one batch."""

    files: int = 0
    bytes: int = 0
    outside: list[tuple[int, LinkLeadsOutside]] = field(default_factory=list)
    """The positions of links that were not made, and why."""


class StopFlag:
    """A flag that forked processes see too. Reading it costs 0.1 µs."""

    def __init__(self) -> None:
        self._byte = mmap.mmap(-1, 1)

    def set(self) -> None:
        """Set it, for good."""
        self._byte[0] = 1

    def __bool__(self) -> bool:
        return self._byte[0] != 0


class Writer(Protocol):
    """A writer of batches, for one caller at a time."""

    def write(self, rows: Sequence[FileRow], contents: Iterable[Content]) -> Written:
        """Write files; `contents` has those that are not empty, in order.

        Returns early once the stop flag is set. Raises `LocalFileError`; nothing is left of the
        file that fails.
        """
        ...


class LocalWriter:
    """Writes in the calling thread. Implements `Writer`; thread-safe."""

    def __init__(self, folder: LocalFolder, stopped: StopFlag) -> None:
        self._folder, self._stopped = folder, stopped

    def write(self, rows: Sequence[FileRow], contents: Iterable[Content]) -> Written:
        """See `Writer`."""
        written, remaining = Written(), iter(contents)
        for parent, group in itertools.groupby(enumerate(rows), _parent):
            with self._folder.directory(parent) as directory:
                for number, (_, name, mode, mtime_ns, size, is_link) in group:
                    if self._stopped:
                        return written
                    content = (next(remaining),) if size else ()
                    if is_link:
                        try:
                            _make_link(directory, parent, name, content, mtime_ns)
                        except LinkLeadsOutside as error:
                            written.outside.append((number, error))
                            continue
                    else:
                        directory.write_file(name, mode, mtime_ns, content)
                    written.files += 1
                    written.bytes += size
        return written


def _parent(numbered: tuple[int, FileRow]) -> str:
    return numbered[1][0]


def _make_link(
    directory: OutputDirectory, parent: str, name: str, content: Iterable[Content], mtime_ns: int
) -> None:
    depth = parent.count("/") + 1 if parent else 0
    directory.make_link(name, b"".join(content), mtime_ns, depth)


class WritingProcess:
    """A forked process that writes. Implements `Writer`.

    It ends when it is told to or its parent has ended, after the file at hand.
    """

    def __init__(
        self, folder: LocalFolder, stopped: StopFlag, others: Iterable[WritingProcess]
    ) -> None:
        import multiprocessing

        context = multiprocessing.get_context("fork")
        self._buffer = mmap.mmap(-1, BATCH_BYTES)
        self._connection, theirs = context.Pipe()
        inherited = [self._connection, *(other._connection for other in others)]
        self._process = context.Process(
            target=_serve,
            args=(LocalWriter(folder, stopped), self._buffer, theirs, inherited),
        )
        self._process.start()
        theirs.close()

    def write(self, rows: Sequence[FileRow], contents: Iterable[Content]) -> Written:
        """See `Writer`. Raises `Unavailable` if the process has ended."""
        at = 0
        for content in contents:
            self._buffer[at : at + len(content)] = content
            at += len(content)
        try:
            self._connection.send(rows)
            answer = self._connection.recv()
        except (EOFError, OSError) as error:
            raise self._ended() from error
        if isinstance(answer, Written):
            return answer
        assert isinstance(answer, BaseException)
        raise answer

    def close(self) -> None:
        """Make it end after the file at hand, and wait."""
        with suppress(OSError):  # a process that was forked meanwhile may hold the pipe open
            self._connection.send(None)
        self._connection.close()
        self._process.join(_END_TIMEOUT_S)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()
        self._buffer.close()

    def _ended(self) -> Unavailable:
        self._process.join(_END_TIMEOUT_S)
        return Unavailable(
            f"a process that writes files ended early (exit code {self._process.exitcode}): run "
            "the same command again for the rest"
        )


def _serve(
    writer: LocalWriter, buffer: mmap.mmap, connection: Connection, inherited: Sequence[Connection]
) -> None:
    for number in _FOR_THE_PARENT:  # blocked since before the fork, so none has come through
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _FOR_THE_PARENT)
    for other in inherited:  # else another process would hold this one's pipe open
        other.close()
    gc.freeze()  # no collection need examine the parent's objects, and copy their pages
    renew_temporary_names()
    with suppress(EOFError, BrokenPipeError, ConnectionResetError):  # the parent has ended
        while (rows := connection.recv()) is not None:
            answer: Written | Exception
            try:
                answer = writer.write(rows, _contents(rows, memoryview(buffer)))
            except Exception as error:
                answer = error
            connection.send(answer)
    os._exit(0)  # streams that another thread held at the fork cannot be flushed


def _contents(rows: Iterable[FileRow], buffer: memoryview) -> Iterator[memoryview]:
    at = 0
    for _, _, _, _, size, _ in rows:
        if size:
            yield buffer[at : at + size]
            at += size


class Writers:
    """All writers of one extraction: one at first, more while writes are slow. Thread-safe."""

    def __init__(
        self, folder: LocalFolder, most: int, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self.stopped = StopFlag()
        self.count = 1
        self._most, self._clock, self._folder = most, clock, folder
        self._local = LocalWriter(folder, self.stopped)
        self._processes: list[WritingProcess] = []
        self._free: queue.SimpleQueue[Writer] = queue.SimpleQueue()
        self._free.put(self._local)

    def start_processes(self) -> None:
        """Start a process for each job, at most one for each core, if there are several.

        They take the place of the first writer, so nobody may be writing now. A daemonic process,
        such as a worker of a DataLoader, may have no children, and writes itself.
        """
        import multiprocessing

        is_able = sys.platform == "linux" and not multiprocessing.current_process().daemon
        count = min(self._most, len(os.sched_getaffinity(0))) if is_able else 1
        if self._processes or count == 1:
            return
        signal.pthread_sigmask(signal.SIG_BLOCK, _FOR_THE_PARENT)
        try:
            for _ in range(count):
                self._processes.append(WritingProcess(self._folder, self.stopped, self._processes))
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _FOR_THE_PARENT)
        while not self._free.empty():
            self._free.get()
        for process in self._processes:
            self._free.put(process)
        self.count = count

    def write(self, rows: Sequence[FileRow], contents: Iterable[Content]) -> Written:
        """Write a batch as soon as a writer is free; see `Writer`."""
        with self.turn(len(rows)) as writer:
            return writer.write(rows, contents)

    @contextmanager
    def turn(self, files: int) -> Iterator[Writer]:
        """Wait for a writer of so many files, and yield it."""
        writer = self._free.get()
        try:
            begin = self._clock()
            yield writer
            is_slow = self._clock() - begin > _SLOW_S * files
            if is_slow and self.count < self._most:
                self.count += 1
                self._free.put(self._local)
        finally:
            self._free.put(writer)

    def close(self) -> None:
        """End the processes."""
        while self._processes:
            self._processes.pop().close()
