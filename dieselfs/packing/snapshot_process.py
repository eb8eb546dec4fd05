"""A process that builds the snapshot of a put beside the put, from the commits alone.

A scan of the index after the last commit keeps one core idle. This process turns each commit into
columns while the put applies it to the index, so the snapshot is there soon after the index is. It
serves puts into new datasets of up to `MOST_FILES` files, which need 300 MB; others scan.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import queue
import signal
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from multiprocessing.context import ForkProcess
from pathlib import Path
from typing import Final, NamedTuple

from chunkstore.chunk_format import DatasetRef, decode_head
from chunkstore.commit_log import BIRTH_GENERATION, Commit
from metadata.committed_tree import CommittedTree, NotOnlyNew
from metadata.records import DatasetState

MOST_FILES: Final = 600_000
WORTHWHILE_FILES: Final = 10_000
"""Number of files of a put from which on the process, which takes 5 ms, is started."""
_END_TIMEOUT_S: Final = 5.0
_FOR_THE_PARENT: Final = (signal.SIGINT, signal.SIGTERM)


class _Added(NamedTuple):
    """A commit, with the encoded heads of its chunks in the order of `commit.added`."""

    commit: Commit
    heads: Sequence[bytes]
    is_last: bool


class SnapshotProcess:
    """The process, started by the first commit. A failure of it is no failure of the put."""

    def __init__(self, dataset: DatasetRef, folder: Path | None) -> None:
        """Without a folder, there is none."""
        self._dataset, self._folder = dataset, folder
        self._connection: Connection | None = None
        self._process: ForkProcess | None = None

    def add(self, commit: Commit, heads: Sequence[bytes], found: int, *, is_last: bool) -> None:
        """Send a commit of a put that found so many files.

        After the last one the snapshot is built at once.
        """
        is_first, folder = commit.generation == BIRTH_GENERATION + 1, self._folder
        is_worthwhile = WORTHWHILE_FILES <= found <= MOST_FILES
        if is_first and is_worthwhile and folder is not None and _may_fork():
            with suppress(OSError):  # without room for a process, the index is scanned
                self._start(folder)
        if self._connection is not None:
            with suppress(OSError):  # `snapshot_of` learns that the process has ended
                self._connection.send(_Added(commit, heads, is_last))

    def snapshot_of(self, state: DatasetState) -> Path | None:
        """Return the snapshot of this state of the index; None if the process has none."""
        if self._connection is None:
            return None
        try:
            self._connection.send(None)
            path, of = self._connection.recv()
        except (EOFError, OSError):  # it has given up, or was killed
            return None
        if of == state:
            return Path(path)
        path.unlink()  # another writer has committed meanwhile
        return None

    def close(self) -> None:
        """End the process."""
        if self._connection is not None:
            self._connection.close()
        if self._process is not None:
            self._process.join(_END_TIMEOUT_S)
            if self._process.is_alive():
                self._process.kill()
                self._process.join()

    def _start(self, folder: Path) -> None:
        context = multiprocessing.get_context("fork")
        ours, theirs = context.Pipe()
        process = context.Process(target=_serve, args=(self._dataset, folder, theirs, ours))
        signal.pthread_sigmask(signal.SIG_BLOCK, _FOR_THE_PARENT)
        with theirs:
            try:
                process.start()
            finally:
                signal.pthread_sigmask(signal.SIG_UNBLOCK, _FOR_THE_PARENT)
        self._process, self._connection = process, ours


def _may_fork() -> bool:
    return sys.platform == "linux" and not multiprocessing.current_process().daemon


def _serve(
    dataset: DatasetRef, folder: Path, connection: Connection, inherited: Connection
) -> None:
    for number in _FOR_THE_PARENT:  # blocked since before the fork
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _FOR_THE_PARENT)
    inherited.close()
    gc.freeze()
    gc.disable()  # columns and short-lived rows have no cycles
    messages: queue.SimpleQueue[_Added | EOFError | None] = queue.SimpleQueue()
    threading.Thread(target=_receive, args=(connection, messages), daemon=True).start()
    with suppress(NotOnlyNew):
        _build(CommittedTree(dataset, MOST_FILES), folder, connection, messages)
    os._exit(0)  # streams that another thread held at the fork cannot be flushed


def _receive(connection: Connection, messages: queue.SimpleQueue[_Added | EOFError | None]) -> None:
    """Take messages at once, so that the put does not wait for this process."""
    try:
        while True:
            messages.put(connection.recv())
    except (EOFError, OSError):
        messages.put(EOFError())


def _build(
    tree: CommittedTree,
    folder: Path,
    connection: Connection,
    messages: queue.SimpleQueue[_Added | EOFError | None],
) -> None:
    built: tuple[Path, DatasetState] | None = None
    while isinstance(message := messages.get(), _Added):
        if built is not None:
            built[0].unlink()
            built = None
        tree.add(message.commit, [decode_head(memoryview(head)) for head in message.heads])
        if message.is_last:
            built = _written(tree, folder)
    if message is None:
        connection.send(built or _written(tree, folder))
    elif built is not None:  # the put has failed
        built[0].unlink()


def _written(tree: CommittedTree, folder: Path) -> tuple[Path, DatasetState]:
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return tree.write(folder)
