"""The packing processes and the pipes to them."""

from __future__ import annotations

import mmap
import multiprocessing
import os
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess

from chunkstore.errors import Unavailable
from chunkstore.stores.adaptive_limit import CallLimit
from chunkstore.stores.aimd import UPLOADS
from chunkstore.stores.object_store import ObjectStore
from chunkstore.stores.shared_limit import SharedLimit
from dieselfs.packing.background_thread import BackgroundThread
from dieselfs.packing.source_tree import EntryBatch
from dieselfs.packing.worker import ChunkReport, FileReport, PackRules, WorkerFailure, run_worker
from metadata.kv.key_value_store import KeyValueStore

_STOP_TIMEOUT_S = 5.0


class PackingProcesses:
    """The packing processes; one thread sends them batches, another receives their reports.

    They are forked before this process starts any thread or uses a store's library, which may not
    survive a fork (`forked_store`).
    """

    def __init__(
        self,
        open_store: Callable[[], ObjectStore],
        open_index: Callable[[], KeyValueStore],
        count: int,
    ) -> None:
        context = multiprocessing.get_context("fork")
        self._feeder: BackgroundThread | None = None
        self.uploads = SharedLimit(UPLOADS.times(count))
        """The limit of uploads that the processes share."""
        self._stopped = mmap.mmap(-1, 1)  # shared with the processes: asking costs 0.1 µs
        self._connections: list[Connection] = []
        self._processes: list[BaseProcess] = []
        for number in range(count):
            ours, theirs = context.Pipe()
            process = context.Process(
                target=_serve,
                args=(
                    *(open_store, open_index, number, theirs, self.stopped_early, self.uploads),
                    [*self._connections, ours],
                ),
            )
            process.start()
            theirs.close()
            self._connections.append(ours)
            self._processes.append(process)

    @property
    def count(self) -> int:
        """The number of processes that were started."""
        return len(self._processes)

    def start_feeding(
        self, packing: PackRules, batches: Iterator[EntryBatch], *, one: bool = False
    ) -> None:
        """Send the rules and the batches from a thread of its own.

        With `one` a single process gets all batches, and keeps their order.
        """
        dealt_to = self._connections[:1] if one else self._connections
        self._feeder = BackgroundThread(lambda: self._feed(packing, batches, dealt_to))

    def finish_feeding(self) -> None:
        """Wait until all batches are sent; raise the error of `batches`."""
        if self._feeder is not None:
            self._feeder.join()

    def _feed(
        self, packing: PackRules, batches: Iterator[EntryBatch], dealt_to: Sequence[Connection]
    ) -> None:
        """Deal the batches out in turn, then send the end mark.

        The turns make the same seed and jobs pack the same chunks.
        """
        count = len(dealt_to)
        try:
            for connection in self._connections:
                _sent(connection, packing)
            for number, batch in enumerate(batches):
                if self.stopped_early() or not _sent(dealt_to[number % count], batch):
                    return
        # Also when `batches` fails, which `finish_feeding` reports: no worker may wait for more.
        finally:
            for connection in self._connections:
                _sent(connection, None)

    def reports(self) -> Iterator[ChunkReport | FileReport | WorkerFailure]:
        """Yield the reports of the workers, until all have finished."""
        open_connections = list(self._connections)
        while open_connections:
            for connection in wait(open_connections):
                assert isinstance(connection, Connection)
                try:
                    yield connection.recv()
                except (EOFError, ConnectionResetError):
                    open_connections.remove(connection)
                    self._check_exit(self._processes[self._connections.index(connection)])
                except OSError:  # the report ends early: the process was killed while it sent it
                    self._check_exit(self._processes[self._connections.index(connection)])
                    raise

    def stop_early(self) -> None:
        """Make the workers pack no more and end as soon as they have stored their full chunks.

        They report these chunks; what is in open chunks is dropped.
        """
        self._stopped[0] = 1
        self._shut_down(socket.SHUT_WR)  # for workers that wait for a batch, and for the feeder

    def stopped_early(self) -> bool:
        """Return True after `stop_early`, in this process and in the workers."""
        return self._stopped[0] != 0

    def hang_up(self) -> None:
        """Make the workers, and the threads that send to them and receive from them, end."""
        self._shut_down(socket.SHUT_RDWR)

    def _shut_down(self, how: int) -> None:
        for connection in self._connections:
            with socket.socket(fileno=os.dup(connection.fileno())) as pipe, suppress(OSError):
                pipe.shutdown(how)

    def stop(self) -> None:
        """Hang up and wait; kill a worker that does not end in time. May be called again."""
        self.hang_up()
        if self._feeder is not None:
            # It may be writing, and the number of a closed descriptor is used again.
            self._feeder.wait()
        while self._connections:
            self._connections.pop().close()
        for process in self._processes:
            process.join(_STOP_TIMEOUT_S)
            if process.is_alive():
                process.kill()
                process.join()

    def _check_exit(self, process: BaseProcess) -> None:
        process.join(_STOP_TIMEOUT_S)
        if process.exitcode:
            raise Unavailable(
                f"a packing process ended early (exit code {process.exitcode}): run the same "
                "command again for the rest"
            )


def _sent(connection: Connection, message: PackRules | EntryBatch | None) -> bool:
    """Send a message; False if the worker is gone, which `reports` reports."""
    try:
        connection.send(message)
    except OSError:
        return False
    return True


def _serve(
    open_store: Callable[[], ObjectStore],
    open_index: Callable[[], KeyValueStore],
    number: int,
    connection: Connection,
    stopped: Callable[[], bool],
    uploads: CallLimit,
    inherited: Sequence[Connection],
) -> None:
    # Otherwise a worker would hold the others' pipes open after their parent's end.
    for other in inherited:
        other.close()
    run_worker(open_store, open_index, number, connection, stopped, uploads)
