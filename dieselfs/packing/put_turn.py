"""The turn of a put among the puts into one dataset: its lease, and the wait for others.

Two puts of the same files at once store everything twice. So a put writes a lease that names its
targets (`chunkstore.put_leases`), and one that finds another put into the same paths waits for its
end. Then it finds the files there and skips them. Puts into different paths do not wait for each
other.

A put that was killed is noticed at once on the same machine, by its process, and elsewhere after
`SILENT_S` without a renewal. If two puts begin in the same moment and their clocks differ, both may
go on; then files are stored twice, and nothing worse happens.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Final

from chunkstore.chunk_format import DatasetRef
from chunkstore.chunk_id import machine_field
from chunkstore.commit_log import find_dataset
from chunkstore.errors import ChunkStoreError, NotFound
from chunkstore.put_leases import (
    BEAT_S,
    MAX_TARGETS,
    SILENT_S,
    PutLease,
    PutState,
    delete_put_lease,
    overlap,
    read_put_leases,
    write_put_lease,
)
from chunkstore.stores.object_store import ObjectStore
from dieselfs.errors import Conflict
from dieselfs.packing.put_request import Beside, FileList
from dieselfs.packing.source_tree import SourceTree

log = logging.getLogger(__name__)

_POLL_S: Final = 1.0
_OLD_NS: Final = 2 * 3600 * 1_000_000_000
"""The age from which a lease is dead without being watched; clocks differ by less than that."""
_STARTED_FIELD: Final = 19
"""The index of `starttime` among the fields of /proc/PID/stat after the command."""


def targets_of(sources: Sequence[SourceTree | FileList], *, delete: bool) -> tuple[bytes, ...]:
    """Return the paths of the dataset that a put of these sources may change.

    They are the names at the top of directories, if these are few. With `delete` they are the
    directories themselves. Costs one listing of each directory that is named.
    """
    found: set[bytes] = set()
    for source in sources:
        if isinstance(source, FileList):
            tops = {path.partition(b"/")[0] for path in source.paths}
        elif delete or not os.path.isdir(source.disk_path):
            tops = set()
        else:
            with suppress(OSError):  # the preflight reports it
                tops = set(os.listdir(source.disk_path))
        if 0 < len(tops) <= MAX_TARGETS:
            found |= {source.target + b"/" + top if source.target else top for top in tops}
        else:
            found.add(source.target)
    return tuple(sorted(found)) if len(found) <= MAX_TARGETS else (b"",)


class PutTurn:
    """The lease of one put: `take` it, and end it with `finish` or `fail`.

    A thread renews it. Errors of the store are logged and change nothing: a lease saves work and
    protects no data.
    """

    def __init__(
        self,
        store: ObjectStore,
        dataset: DatasetRef,
        targets: tuple[bytes, ...],
        writers: Sequence[bytes],
        *,
        beat_s: float = BEAT_S,
        silent_s: float = SILENT_S,
        poll_s: float = _POLL_S,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store, self._dataset = store, dataset
        self._beat_s, self._silent_s, self._poll_s = beat_s, silent_s, poll_s
        self._clock_s = clock_s
        self._machine = machine_field()
        now_ns = time.time_ns()
        self._lease = PutLease(
            os.urandom(16).hex(),
            0,
            dataset.id,
            PutState.WAITING,
            socket.gethostname(),
            os.getpid(),
            started_ticks(os.getpid()),
            self._machine,
            tuple(writers),
            now_ns,
            now_ns,
            targets,
        )
        self._in_store: list[int] = []
        self._change = threading.Lock()
        self._seen: dict[str, tuple[int, float]] = {}
        """Lease -> its number, and when that number was first seen."""
        self._ended = threading.Event()
        self._keeper = threading.Thread(target=self._keep, name="put-lease", daemon=True)

    @property
    def targets(self) -> tuple[bytes, ...]:
        """The paths that the put may change, or what is below them."""
        return self._lease.targets

    def take(self, beside: Beside, note: Callable[[str], None]) -> list[PutLease]:
        """Wait until no other put into the same paths is under way; return the dead ones' leases.

        `note` gets a line about each put that is in the way. With `Beside.ANYWAY` nothing is waited
        for, and with `Beside.REFUSE` `Conflict` is raised. `NotFound` is raised if the dataset is
        removed meanwhile. Costs two creates, one listing and one delete if there is no other put.
        """
        self._write(PutState.WAITING)
        self._keeper.start()
        noted: set[str] = set()
        while True:
            alive, dead = self._others()
            mine = self._lease
            in_the_way = [
                lease
                for lease in alive
                if overlap(lease.targets, mine.targets)
                and (
                    lease.state is PutState.RUNNING
                    or (lease.began_ns, lease.lease_id) < (mine.began_ns, mine.lease_id)
                )
            ]
            for lease in in_the_way:
                if beside is Beside.REFUSE:
                    raise Conflict(
                        f"{self._described(lease)} is under way",
                        "wait for its end, or add --anyway: both then store the same files",
                    )
                if lease.lease_id not in noted:
                    noted.add(lease.lease_id)
                    note(f"{self._described(lease)} is under way: {_CONSEQUENCES[beside]}")
            if not in_the_way or beside is Beside.ANYWAY:
                self._write(PutState.RUNNING)
                return dead
            if find_dataset(self._store, self._dataset.name) != self._dataset:
                raise NotFound(f"dataset {self._dataset.name} was removed meanwhile")
            self._ended.wait(self._poll_s)

    def finish(self, handled: Sequence[PutLease]) -> None:
        """End the lease, and delete those of dead puts that left nothing to reuse."""
        self._stop()
        with self._change:
            self._quietly(self._drop)
        for lease in handled:
            self._quietly(lambda lease=lease: self._delete_all(lease))  # type: ignore[misc]

    def fail(self) -> None:
        """End the lease, but leave it: this put may have stored chunks that no commit names."""
        self._stop()
        self._write(PutState.ENDED)

    def _described(self, lease: PutLease) -> str:
        here = "this machine" if lease.machine == self._machine else lease.host
        since = time.strftime("%H:%M:%S", time.localtime(lease.began_ns // 1_000_000_000))
        return (
            f"another put into the same paths of {self._dataset.name}, on {here} "
            f"(process {lease.pid}, since {since})"
        )

    def _others(self) -> tuple[list[PutLease], list[PutLease]]:
        """Return the leases of living and of dead puts."""
        try:
            found = read_put_leases(self._store, self._dataset)
        except ChunkStoreError as error:
            log.warning("cannot tell if another put is under way: %s", error)
            return [], []
        for reason in found.damaged.values():
            log.warning("%s: it is ignored", reason)
        alive: list[PutLease] = []
        dead: list[PutLease] = []
        for lease in found.values.values():
            if lease.lease_id != self._lease.lease_id and lease.dataset_id == self._dataset.id:
                (dead if self._is_dead(lease) else alive).append(lease)
        return alive, dead

    def _is_dead(self, lease: PutLease) -> bool:
        if lease.state is PutState.ENDED:
            return True
        if lease.machine == self._machine and lease.started_ticks:
            return started_ticks(lease.pid) != lease.started_ticks
        if time.time_ns() - lease.written_ns > _OLD_NS:
            return True
        number, since_s = self._seen.get(lease.lease_id, (0, 0.0))
        if number != lease.number:
            self._seen[lease.lease_id] = lease.number, self._clock_s()
            return False
        return self._clock_s() - since_s >= self._silent_s

    def _keep(self) -> None:
        while not self._ended.wait(self._beat_s):
            self._write(None)

    def _stop(self) -> None:
        self._ended.set()

    def _write(self, state: PutState | None) -> None:
        """Write the next number, with another state if one is given, and delete the older ones."""
        with self._change:
            if state is None and self._ended.is_set():
                return
            lease = self._lease
            self._lease = replace(
                lease,
                number=lease.number + 1,
                state=state or lease.state,
                written_ns=time.time_ns(),
            )
            self._quietly(self._renew)

    def _renew(self) -> None:
        older = list(self._in_store)
        self._in_store.append(self._lease.number)
        write_put_lease(self._store, self._dataset.name, self._lease)
        delete_put_lease(self._store, self._dataset.name, self._lease.lease_id, older)
        self._in_store = [self._lease.number]

    def _drop(self) -> None:
        lease_id = self._lease.lease_id
        delete_put_lease(self._store, self._dataset.name, lease_id, self._in_store)

    def _delete_all(self, lease: PutLease) -> None:
        delete_put_lease(self._store, self._dataset.name, lease.lease_id, [lease.number])

    def _quietly(self, act: Callable[[], None]) -> None:
        try:
            act()
        except ChunkStoreError as error:
            log.warning("cannot write the lease of this put: %s", error)


_CONSEQUENCES: Final = {
    Beside.WAIT: "waiting for its end (--no-wait refuses, --anyway goes on beside it)",
    Beside.ANYWAY: "files that both put are stored twice",
}


def started_ticks(pid: int) -> int:
    """Return when a process of this machine started, in clock ticks since boot; 0 if it is gone.

    The result is 0 also where there is no /proc. A zombie has ended.
    """
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return 0
    return 0 if fields[0] == b"Z" else int(fields[_STARTED_FIELD])
