"""The allocation directory in a folder of the node's shared memory, for an index that is no Redis.

The folder is `<tmpfs>/dieselfs-allocations-<uid>/`, which only its user can access. Decisions and
declared jobs lie in one file (`decisions_file`); they outlast processes, but not a reboot. A lease
is a file that lives as long as its reader (`HeldFiles`). Its name begins with a hash of the job's
name, so a reader opens only the files of its own job.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from functools import wraps
from pathlib import Path
from typing import Concatenate, Final, ParamSpec, TypeVar

import msgspec
import xxhash

from dieselfs.allocation.directory import reader_lease
from dieselfs.allocation.directory.decisions import (
    CacheDecision,
    Decisions,
    IoDecision,
    JobEntry,
    Origin,
    keys_of,
)
from dieselfs.allocation.directory.decisions_file import (
    Content,
    DecisionsFile,
    locked,
    replace_file,
)
from dieselfs.allocation.directory.directory_decoder import DirectoryDecoder
from dieselfs.allocation.directory.port import MAX_JOB_READERS, MAX_READERS, Renewal
from dieselfs.allocation.directory.reader_lease import MAX_LEASE_BYTES, ReaderLease
from dieselfs.cache.node.held_files import HeldFiles, private_folder
from dieselfs.errors import LocalFileError, RegistryUnavailable

LEADER: Final = "leader.json"
_LEASE: Final = ".lease"

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


class _Leader(msgspec.Struct):
    id: str
    until_s: float
    """The end of the lease by this node's monotonic clock."""


def _translated(
    method: Callable[Concatenate[FolderDirectory, Arguments], Result],
) -> Callable[Concatenate[FolderDirectory, Arguments], Result]:
    """Return the method with its errors of files as `RegistryUnavailable`."""

    @wraps(method)
    def call(
        self: FolderDirectory, /, *arguments: Arguments.args, **named: Arguments.kwargs
    ) -> Result:
        try:
            return method(self, *arguments, **named)
        except OSError as error:
            raise RegistryUnavailable(f"{self}: {error.strerror or error}") from error
        except LocalFileError as error:
            raise RegistryUnavailable(str(error)) from error

    return call


class FolderDirectory:
    """The `AllocationDirectory` in a folder."""

    def __init__(
        self,
        folder: Path | None = None,
        *,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """Create it; the folder is made by what is first written there."""
        self.folder = folder or private_folder("allocations")
        self._clock, self._monotonic = clock, monotonic
        self._file = DecisionsFile(self.folder, clock)
        self._leases = HeldFiles(
            self.folder, _LEASE, max_files=MAX_READERS, max_bytes=MAX_LEASE_BYTES
        )
        self._names: dict[str, str] = {}
        """The files of the leases of this process, by reader."""
        self._records = DirectoryDecoder(str(self))

    def __str__(self) -> str:
        return f"the allocation directory in {self.folder}"

    @_translated
    def allocate_cache_size(
        self, dataset: str, dataset_id: str, size_bytes: int | None, *, origin: Origin
    ) -> None:
        """See `AllocationDirectory`."""
        change = self._file.remove if size_bytes is None else self._file.put
        change(
            CacheDecision(
                dataset=dataset, dataset_id=dataset_id, size_bytes=size_bytes or 0, origin=origin
            )
        )

    @_translated
    def allocate_remote_io(self, job: str, bytes_per_s: float | None, *, origin: Origin) -> None:
        """See `AllocationDirectory`."""
        change = self._file.remove if bytes_per_s is None else self._file.put
        change(IoDecision(job=job, bytes_per_s=bytes_per_s or 0.0, origin=origin))

    @_translated
    def put_job(self, entry: JobEntry) -> None:
        """See `AllocationDirectory`."""
        self._file.put(entry)

    @_translated
    def remove_job(self, name: str) -> None:
        """See `AllocationDirectory`."""
        self._file.remove(JobEntry(job=name, dataset="-", dataset_bytes=1, speed_bytes_per_s=1.0))

    @_translated
    def jobs(self) -> list[JobEntry]:
        """See `AllocationDirectory`."""
        return self._records.jobs(map(bytes, self._file.content().jobs.values()), self._now_us())

    @_translated
    def decisions(self) -> Decisions:
        """See `AllocationDirectory`."""
        found = self._file.content()
        caches, ios = map(bytes, found.caches.values()), map(bytes, found.ios.values())
        return self._records.decisions(caches, ios, found.cache_version, self._now_us())

    @_translated
    def beat(self, lease: ReaderLease, lease_s: float) -> Renewal:
        """See `AllocationDirectory`. The lease ends with the process, whatever `lease_s` is."""
        prefix = f"{xxhash.xxh3_64_hexdigest(lease.job.encode())}-"
        self._put(lease, prefix)
        contents, _ = self._leases.contents(prefix)
        peers = [each for each in self._records.leases(contents) if each.job == lease.job]
        found = self._file.content()
        return Renewal(
            self._io_of(lease.job, found),
            peers,
            found.cache_version,
            bool(found.caches or found.ios),
        )

    @_translated
    def leases(self) -> list[ReaderLease]:
        """See `AllocationDirectory`."""
        try:
            contents, _ = self._leases.contents()
        except FileNotFoundError:
            return []
        return self._records.leases(contents)

    def withdraw(self, reader: str) -> None:
        """See `AllocationDirectory`."""
        self._leases.remove(self._names.pop(reader, ""))

    @_translated
    def lead(self, id: str, lease_s: float) -> str:
        """See `AllocationDirectory`."""
        with locked(self.folder):
            leader = self._leader()
            if leader is None or leader.id == id:
                leader = _Leader(id, self._monotonic() + lease_s)
                replace_file(self.folder / LEADER, msgspec.json.encode(leader))
        return leader.id

    def resign(self, id: str) -> None:
        """See `AllocationDirectory`."""
        with suppress(OSError, LocalFileError, RegistryUnavailable), locked(self.folder):
            leader = self._leader()
            if leader is not None and leader.id == id:
                (self.folder / LEADER).unlink()

    def close(self) -> None:
        """See `AllocationDirectory`."""
        self._leases.close()

    def _now_us(self) -> int:
        return int(self._clock() * 1e6)

    def _put(self, lease: ReaderLease, prefix: str) -> None:
        """Write the lease; under another name than before, if the reader has changed its job."""
        name = f"{prefix}{lease.reader}"
        if self._names.get(lease.reader, name) != name:
            self.withdraw(lease.reader)
        if lease.reader not in self._names and self._leases.count(prefix) >= MAX_JOB_READERS:
            raise RegistryUnavailable(f"{self} has no room for another reader of {lease.job!r}")
        self._leases.put(name, reader_lease.encoded(lease))
        self._names[lease.reader] = name

    def _io_of(self, job: str, found: Content) -> IoDecision | None:
        ios = [bytes(found.ios[key]) for key in keys_of(job) if key in found.ios]
        return self._records.io_of(job, ios, self._now_us())

    def _leader(self) -> _Leader | None:
        """Return the leader; None if there is none, or its lease has ended."""
        try:
            found = msgspec.json.decode((self.folder / LEADER).read_bytes(), type=_Leader)
        except (FileNotFoundError, msgspec.DecodeError):
            return None
        return found if found.until_s > self._monotonic() else None
