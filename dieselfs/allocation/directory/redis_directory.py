"""The allocation directory in the Redis of the index, a server or a cluster.

All its keys are in one slot (docs/metadata-layout.md), so a beat is one script: it renews the lease
and returns the decisions on the job, the leases of its readers, and the number of the last decision
on a cache. Stamps and leases go by the clock of the server.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import wraps
from typing import Concatenate, Final, ParamSpec, TypeVar

import msgspec

from dieselfs.allocation.directory import reader_lease
from dieselfs.allocation.directory.decisions import (
    AHEAD_US,
    CacheDecision,
    Decisions,
    IoDecision,
    JobEntry,
    Origin,
    StampedRecord,
    encoded,
    keys_of,
)
from dieselfs.allocation.directory.directory_decoder import DirectoryDecoder
from dieselfs.allocation.directory.port import (
    MAX_DECISIONS,
    MAX_JOB_READERS,
    MAX_READERS,
    Renewal,
)
from dieselfs.allocation.directory.reader_lease import MAX_LEASE_BYTES, ReaderLease
from dieselfs.errors import RegistryUnavailable
from metadata.errors import IndexUnavailable
from metadata.keys import (
    ALLOCATED_CACHES,
    ALLOCATED_IO,
    ALLOCATION_JOBS,
    ALLOCATION_LEADER,
    ALLOCATION_STATE,
    READER_ENDS,
    READER_LEASES,
    reader_ends_of,
)
from metadata.kv.redis_board import BoardKeys, NoRoom, RedisBoard, Renewed

log = logging.getLogger(__name__)

FEW_READERS: Final = 256
"""Up to so many readers of a job see all leases at each beat; they are 65,536 leases a second."""
_KEYS: Final = BoardKeys(ALLOCATION_STATE, ALLOCATION_LEADER, READER_LEASES, READER_ENDS)
_STAMP: Final = b'"stamp":'
_GREATEST_STAMP: Final = 1 << 53

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class _Peers:
    """The leases of a job with many readers, as one of them saw them last."""

    leases: Sequence[ReaderLease]
    due_s: float
    """When they are asked for again, by this process's monotonic clock."""


def _translated(
    method: Callable[Concatenate[RedisDirectory, Arguments], Result],
) -> Callable[Concatenate[RedisDirectory, Arguments], Result]:
    """Return the method with its errors as `RegistryUnavailable`."""

    @wraps(method)
    def call(
        self: RedisDirectory, /, *arguments: Arguments.args, **named: Arguments.kwargs
    ) -> Result:
        try:
            return method(self, *arguments, **named)
        except IndexUnavailable as error:
            raise RegistryUnavailable(str(error)) from error
        except NoRoom as error:
            raise RegistryUnavailable(f"{self} is full") from error

    return call


class RedisDirectory:
    """The `AllocationDirectory` in a Redis."""

    def __init__(self, url: str, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        """Raise `IndexUnavailable` if the URL is no address of a Redis. No call is made."""
        self._board = RedisBoard(url, _KEYS, longest_bytes=MAX_LEASE_BYTES, ahead_s=AHEAD_US / 1e6)
        self._monotonic = monotonic
        self._jobs: dict[str, str] = {}
        """The jobs of the leases of this process, by reader."""
        self._peers: dict[str, _Peers] = {}
        self._records = DirectoryDecoder(str(self))

    def __str__(self) -> str:
        return f"the allocation directory in {self._board}"

    @_translated
    def allocate_cache_size(
        self, dataset: str, dataset_id: str, size_bytes: int | None, *, origin: Origin
    ) -> None:
        """See `AllocationDirectory`."""
        decision = CacheDecision(
            dataset=dataset, dataset_id=dataset_id, size_bytes=size_bytes or 0, origin=origin
        )
        if size_bytes is None:
            self._board.remove(ALLOCATED_CACHES, decision.key, counts=True)
        else:
            self._put(ALLOCATED_CACHES, decision)

    @_translated
    def allocate_remote_io(self, job: str, bytes_per_s: float | None, *, origin: Origin) -> None:
        """See `AllocationDirectory`."""
        decision = IoDecision(job=job, bytes_per_s=bytes_per_s or 0.0, origin=origin)
        if bytes_per_s is None:
            self._board.remove(ALLOCATED_IO, decision.key, counts=False)
        else:
            self._put(ALLOCATED_IO, decision)

    @_translated
    def put_job(self, entry: JobEntry) -> None:
        """See `AllocationDirectory`."""
        self._put(ALLOCATION_JOBS, entry)

    @_translated
    def remove_job(self, name: str) -> None:
        """See `AllocationDirectory`."""
        self._board.remove(ALLOCATION_JOBS, name, counts=False)

    @_translated
    def jobs(self) -> list[JobEntry]:
        """See `AllocationDirectory`."""
        state, [jobs] = self._board.records(ALLOCATION_JOBS)
        return self._records.jobs(jobs, state.now_us)

    @_translated
    def decisions(self) -> Decisions:
        """See `AllocationDirectory`. Costs one round trip, and some 200 bytes a decision."""
        state, [caches, ios] = self._board.records(ALLOCATED_CACHES, ALLOCATED_IO)
        found = self._records.decisions(caches, ios, state.version, state.now_us)
        return Decisions(found.caches, found.ios, found.version, state.life, state.awake_s)

    @_translated
    def beat(self, lease: ReaderLease, lease_s: float) -> Renewal:
        """See `AllocationDirectory`."""
        content = reader_lease.encoded(lease)
        if self._jobs.get(lease.reader, lease.job) != lease.job:
            self.withdraw(lease.reader)
        known = self._known_peers(lease)
        found = self._board.renew(
            reader_ends_of(lease.job),
            lease.reader,
            content,
            lease_s,
            most=(MAX_JOB_READERS, MAX_READERS),
            maps=(ALLOCATED_IO, ALLOCATED_CACHES),
            fields=keys_of(lease.job),
            with_leases=known is None,
        )
        self._jobs[lease.reader] = lease.job
        peers = self._seen_peers(lease, found) if known is None else known
        state = found.state
        io = self._records.io_of(lease.job, found.records, state.now_us)
        return Renewal(
            *(io, peers, state.version, found.has_any),
            *(state.life, state.since, state.awake_s),
        )

    @_translated
    def leases(self) -> list[ReaderLease]:
        """See `AllocationDirectory`. Costs one round trip for 4,096 readers."""
        contents = [each for batch in self._board.leases() for each in batch]
        return list({each.reader: each for each in self._records.leases(contents)}.values())

    def withdraw(self, reader: str) -> None:
        """See `AllocationDirectory`."""
        job = self._jobs.pop(reader, None)
        self._peers.pop(reader, None)
        try:
            if job is not None:
                self._board.withdraw(reader_ends_of(job), reader)
        except IndexUnavailable as error:
            log.info("cannot give back the lease of a reader, so it expires: %s", error)

    @_translated
    def lead(self, id: str, lease_s: float) -> str:
        """See `AllocationDirectory`."""
        return self._board.lead(id, lease_s)

    def resign(self, id: str) -> None:
        """See `AllocationDirectory`."""
        try:
            self._board.resign(id)
        except IndexUnavailable as error:
            log.info("cannot resign, so the leader's lease expires: %s", error)

    def close(self) -> None:
        """See `AllocationDirectory`."""
        self._board.close()

    def _put(self, key: bytes, record: StampedRecord) -> None:
        """Put a record; the server writes its stamp, which is last. Raises `ValueError`."""
        content = encoded(msgspec.structs.replace(record, stamp=_GREATEST_STAMP))
        head, stamp, _ = content.rpartition(_STAMP)
        is_of_cache = isinstance(record, CacheDecision)
        parts = (head + stamp, b"}")
        self._board.put(key, record.key, parts, MAX_DECISIONS, counts=is_of_cache)

    def _known_peers(self, lease: ReaderLease) -> list[ReaderLease] | None:
        """Return the leases of a job with many readers; None if they are to be asked for."""
        known = self._peers.get(lease.reader)
        if known is None or self._monotonic() >= known.due_s:
            return None
        return [lease, *(each for each in known.leases if each.reader != lease.reader)]

    def _seen_peers(self, lease: ReaderLease, found: Renewed) -> list[ReaderLease]:
        """Return the leases of the job's readers; of many, keep them until they are due again."""
        peers = [each for each in self._records.leases(found.leases) if each.job == lease.job]
        self._peers.pop(lease.reader, None)
        if len(peers) > FEW_READERS:
            due_s = self._monotonic() + (len(peers) / FEW_READERS) ** 2
            self._peers[lease.reader] = _Peers(peers, due_s)
        return peers
