"""The keeper of a mount's lease, which names the generations that the mount serves.

It writes the lease to the store, renews it, and deletes it at the end. A thread of its own does all
that may block, so a store that is down delays neither the mount nor its end. A write that fails is
tried again at the next beat. Nothing depends on success: without a lease, kept snapshots and the
grace period protect the mount (docs/decisions/0009), and the log says so once.

Store calls: a get and a create at the beginning and for each refresh; a get, a create and a delete
every 20 minutes; a delete at the end.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from collections.abc import Callable
from typing import Final

from chunkstore.chunk_format import DatasetRef
from chunkstore.commit_log import find_dataset
from chunkstore.errors import ChunkStoreError
from chunkstore.leases import (
    BEAT_S,
    MAX_GENERATIONS,
    TTL_S,
    Lease,
    delete_lease,
    new_lease_id,
    write_lease,
)
from chunkstore.stores.object_store import ObjectStore

log = logging.getLogger(__name__)

GOODBYE_S: Final = 1.0
"""The time that the end of a mount waits for the deletion of its lease. Otherwise it expires."""


class LeaseKeeper:
    """One lease of one process: enter it, call `serve` for each generation, leave it.

    Thread-safe. A forked child holds no lease.
    """

    def __init__(
        self,
        store: ObjectStore,
        dataset: DatasetRef,
        *,
        beat_s: float = BEAT_S,
        ttl_s: int = TTL_S,
        clock_ns: Callable[[], int] = time.time_ns,
        goodbye_s: Callable[[], float] = lambda: GOODBYE_S,
    ) -> None:
        """Create the keeper. At the end `goodbye_s` returns how long the deletion may take."""
        self.lease_id = new_lease_id()
        self._store = store
        self._dataset = dataset
        self._beat_s = beat_s
        self._ttl_s = ttl_s
        self._clock_ns = clock_ns
        self._goodbye_s = goodbye_s
        self._pid = os.getpid()
        self._change = threading.Condition()
        self._generations: set[int] = set()
        self._announced: frozenset[int] = frozenset()
        self._written: frozenset[int] = frozenset()
        """The generations in the lease that is in the store."""
        self._tries = 0
        self._closing = False
        self._warned = False
        # Only the keeping thread uses these.
        self._number = 0
        self._in_store: list[int] = []
        self._thread = threading.Thread(target=self._keep, name="lease", daemon=True)

    def serve(self, generation: int) -> None:
        """Announce a generation, until the end. Returns at once."""
        with self._change:
            self._generations.add(generation)
            self._change.notify_all()

    def is_written(self, generation: int, timeout_s: float) -> bool:
        """Return whether the lease in the store names a generation that `serve` has announced.

        Waits for the first try to write it, and for `timeout_s` at most.
        """
        with self._change:
            self._change.wait_for(
                lambda: generation in self._written or self._tries > 0 or self._closing, timeout_s
            )
            return generation in self._written

    def __enter__(self) -> LeaseKeeper:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Delete the lease; wait `goodbye_s` at most. May be called twice."""
        if os.getpid() != self._pid:
            return  # the lease is the parent's
        with self._change:
            self._closing = True
            self._change.notify_all()
        if self._thread.is_alive():
            self._thread.join(self._goodbye_s())

    def _keep(self) -> None:
        while self._wait():
            with self._change:
                self._announced = frozenset(self._generations)
            written: frozenset[int] = frozenset()
            try:
                if self._announce(self._announced):
                    written = self._announced
            except ChunkStoreError as error:
                self._warn(error)
            except Exception as error:
                log.exception("cannot write the lease: %s", error)
            with self._change:
                self._written, self._tries = written or self._written, self._tries + 1
                self._change.notify_all()
        try:
            self._delete(self._in_store)
        except ChunkStoreError as error:
            log.info("cannot delete the lease %s, which expires later: %s", self.lease_id, error)

    def _wait(self) -> bool:
        """Wait until the next beat, or until there is a new generation; False at the end."""
        with self._change:
            self._change.wait_for(
                lambda: self._closing or self._generations - self._announced,
                self._beat_s if self._generations else None,
            )
            return not self._closing

    def _announce(self, generations: frozenset[int]) -> bool:
        """Write the next number; return False if the dataset was removed."""
        # A removed dataset must not get objects again, nor a store's folder whose disk is not
        # mounted.
        if find_dataset(self._store, self._dataset.name) != self._dataset:
            log.info("dataset %s was removed: its lease is dropped", self._dataset.name)
            self._delete(self._in_store)
            return False
        lease = Lease(
            self.lease_id,
            self._number + 1,
            self._dataset.id,
            tuple(sorted(generations)[-MAX_GENERATIONS:]),
            socket.gethostname(),
            self._pid,
            self._clock_ns(),
            self._ttl_s,
        )
        older, self._number = list(self._in_store), lease.number
        self._in_store.append(lease.number)  # also if there is no answer: it may be there
        write_lease(self._store, self._dataset.name, lease)
        if self._warned:
            log.info("the lease %s can be written again", self.lease_id)
            self._warned = False
        try:
            self._delete(older)
        except ChunkStoreError as error:  # they mean nothing any more; tried again at the next beat
            log.info("cannot delete an older object of the lease %s: %s", self.lease_id, error)
        return True

    def _delete(self, numbers: list[int]) -> None:
        for number in list(numbers):
            delete_lease(self._store, self._dataset.name, self.lease_id, number)
            self._in_store.remove(number)

    def _warn(self, error: ChunkStoreError) -> None:
        if not self._warned:
            self._warned = True
            log.warning(
                "cannot write the lease (%s): until it is written, only published snapshots and "
                "the grace period protect the chunks that this mount serves from purge and gc",
                error,
            )
