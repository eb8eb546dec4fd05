"""The job registry in a folder of the node's shared memory, for an index that is no Redis.

The folder is `<tmpfs>/dieselfs-jobs-<uid>/`, which only its user can access. A record is a file
that its publisher keeps open and locked (`flock`), so it is forgotten when the process ends in
whatever way, and no clock matters. The record is written in place, behind its length and checksum,
and a reader that meets a write under way looks again. Orders are files named by their ids; those
that no record names are deleted.
"""

from __future__ import annotations

import fcntl
import logging
import os
import struct
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import xxhash

from dieselfs.cache.jobs.job_record import MAX_RECORD_BYTES, JobRecord, encoded
from dieselfs.cache.jobs.job_registry import RecordReader
from dieselfs.cache.jobs.published_order import MAX_ORDER_BYTES, PublishedOrder, decoded_order
from dieselfs.cache.node.task_folder import VARIABLE, make_private
from dieselfs.errors import LocalFileError, RegistryUnavailable

log = logging.getLogger(__name__)

MAX_RECORDS: Final = 1024
MAX_ORDERS_BYTES: Final = 256 << 20
_PREFIX: Final = struct.Struct("=QQ")
"""The bytes of the record, and their checksum."""
_RECORD, _ORDER = ".job", ".order"
_LOOKS: Final = 3
_UNNAMED_S: Final = 60.0
"""The age from which an order that no record names is deleted."""


def jobs_folder() -> Path:
    """Return the path of this user's registry."""
    base = Path(os.environ.get(VARIABLE) or "/dev/shm").absolute()
    return base / f"dieselfs-jobs-{os.geteuid()}"


class JobsFolder:
    """The `JobRegistry` in a folder."""

    def __init__(self, folder: Path | None = None) -> None:
        """Create it; the folder is made by the first record."""
        self.folder = folder or jobs_folder()
        self._held: dict[str, int] = {}
        """The descriptors of the records of this process, which have their locks."""
        self._reader = RecordReader(str(self))

    def __str__(self) -> str:
        return f"the job registry in {self.folder}"

    def publish(self, record: JobRecord, order: PublishedOrder) -> None:
        """See `JobRegistry`."""
        content = encoded(record)
        try:
            self._keep(order)
            if record.reader not in self._held:
                self._create(record.reader, content)
            else:
                _write(self._held[record.reader], content)
        except OSError as error:
            raise RegistryUnavailable(f"{self}: {error.strerror or error}") from error
        except LocalFileError as error:
            raise RegistryUnavailable(str(error)) from error

    def withdraw(self, reader: str) -> None:
        """See `JobRegistry`."""
        fd = self._held.pop(reader, None)
        if fd is None:
            return
        with suppress(OSError):
            os.unlink(self.folder / f"{reader}{_RECORD}")
        os.close(fd)
        with suppress(OSError):
            self._delete_orders({record.order for record in self._records()}, 0.0)

    def records(self) -> Sequence[JobRecord]:
        """See `JobRegistry`."""
        try:
            return self._records()
        except FileNotFoundError:
            return []
        except OSError as error:
            raise RegistryUnavailable(f"{self}: {error.strerror or error}") from error

    def order(self, id: str) -> PublishedOrder | None:
        """See `JobRegistry`."""
        try:
            with open(self.folder / f"{id}{_ORDER}", "rb") as file:
                return decoded_order(file.read(MAX_ORDER_BYTES + 1), id)
        except (OSError, ValueError) as error:
            log.debug("order %s in %s is skipped: %s", id, self, error)
            return None

    def close(self) -> None:
        """See `JobRegistry`."""
        for fd in self._held.values():
            os.close(fd)
        self._held.clear()

    def _records(self) -> list[JobRecord]:
        contents, has_dead = [], False
        for name in _names(self.folder, _RECORD):
            path = self.folder / name
            try:
                with _opened(path) as fd:
                    if _is_held(fd):
                        contents.append(_read(fd))
                    else:
                        path.unlink()
                        has_dead = True
            except FileNotFoundError:
                continue
            except OSError as error:  # not one of ours
                log.debug("%s is skipped: %s", path, error)
                contents.append(b"")
        found = self._reader.decoded(contents)
        if has_dead:
            self._delete_orders({record.order for record in found}, _UNNAMED_S)
        return found

    def _create(self, reader: str, content: bytes) -> None:
        """Make the record's file, locked before others see it."""
        make_private(self.folder)
        if sum(1 for _ in _names(self.folder, _RECORD)) >= MAX_RECORDS:
            raise RegistryUnavailable(f"{self} is full")
        temporary = self.folder / f".{reader}"
        fd = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            _write(fd, content)
            os.rename(temporary, self.folder / f"{reader}{_RECORD}")
        except BaseException:
            os.close(fd)
            raise
        self._held[reader] = fd

    def _keep(self, order: PublishedOrder) -> None:
        """Write the order unless it is there."""
        path = self.folder / f"{order.id}{_ORDER}"
        if path.exists():
            return
        make_private(self.folder)
        self._delete_orders({record.order for record in self._records()}, _UNNAMED_S)
        others = sum(os.stat(self.folder / name).st_size for name in _names(self.folder, _ORDER))
        if others + len(order.content) > MAX_ORDERS_BYTES:
            raise RegistryUnavailable(f"{self} has no room for another order")
        temporary = self.folder / f".{order.id}.{os.getpid()}"
        with open(temporary, "wb") as file:
            file.write(order.content)
        os.rename(temporary, path)

    def _delete_orders(self, named: set[str], least_age_s: float) -> None:
        """Delete the orders that no record names; new ones may be named in a moment."""
        for name in _names(self.folder, _ORDER):
            path = self.folder / name
            with suppress(OSError):  # it is gone, or not one of ours
                age_s = time.time() - path.stat().st_mtime
                if name.removesuffix(_ORDER) not in named and abs(age_s) >= least_age_s:
                    path.unlink()


def _names(folder: Path, suffix: str) -> Iterator[str]:
    return (
        name for name in os.listdir(folder) if name.endswith(suffix) and not name.startswith(".")
    )


@contextmanager
def _opened(path: Path) -> Iterator[int]:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        yield fd
    finally:
        os.close(fd)


def _is_held(fd: int) -> bool:
    """Return whether the publisher lives. Several may look at a time."""
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    return False


def _write(fd: int, content: bytes) -> None:
    os.pwrite(fd, _PREFIX.pack(len(content), xxhash.xxh3_64_intdigest(content)) + content, 0)


def _read(fd: int) -> bytes:
    """Return the record; what is damaged is returned as b""."""
    for _ in range(_LOOKS):
        found = os.pread(fd, _PREFIX.size + MAX_RECORD_BYTES, 0)
        if len(found) < _PREFIX.size:
            break
        length, checksum = _PREFIX.unpack_from(found)
        content = found[_PREFIX.size : _PREFIX.size + length]
        if len(content) == length and xxhash.xxh3_64_intdigest(content) == checksum:
            return content
    return b""
