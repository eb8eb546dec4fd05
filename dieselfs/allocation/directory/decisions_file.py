"""The file of an allocation directory in a folder: its decisions and declared jobs.

It is replaced as a whole, by one process at a time, so a process that reads it sees each change at
once or not at all.
"""

from __future__ import annotations

import fcntl
import logging
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, Literal

import msgspec

from dieselfs.allocation.directory.decisions import (
    AHEAD_US,
    CacheDecision,
    IoDecision,
    StampedRecord,
    encoded,
)
from dieselfs.allocation.directory.port import MAX_DECISIONS
from dieselfs.cache.node.task_folder import make_private
from dieselfs.errors import RegistryUnavailable

log = logging.getLogger(__name__)

DECISIONS: Final = "decisions.json"
_LOCK: Final = "lock"
LOCK_S: Final = 2.0
"""The time for which a change waits for other processes; each takes some milliseconds."""
_STEP_S: Final = 0.01


class Content(msgspec.Struct, kw_only=True):
    """The content of the file: records by their keys.

    Those that this release cannot read are kept.
    """

    version: Literal[1] = msgspec.field(name="v", default=1)
    stamp: int = 0
    """The greatest stamp."""
    cache_version: int = 0
    """The stamp of the last change of a decision on a cache."""
    caches: dict[str, msgspec.Raw] = {}
    ios: dict[str, msgspec.Raw] = {}
    jobs: dict[str, msgspec.Raw] = {}


_decoder: Final = msgspec.json.Decoder(Content)


class DecisionsFile:
    """The file in a folder. One thread at a time uses an object."""

    def __init__(self, folder: Path, clock: Callable[[], float]) -> None:
        """Create the object; the file is made by the first change. `clock` is the node's time."""
        self._folder, self._clock = folder, clock
        self._seen: tuple[int, int, int] | None = None
        self._content = Content()
        """The content of the file when it was as `_seen` says."""

    def content(self) -> Content:
        """Return the content, read again only if the file has changed. Raises `OSError`."""
        path = self._folder / DECISIONS
        try:
            found = path.stat()
        except FileNotFoundError:
            self._seen, self._content = None, Content()
            return self._content
        seen = (found.st_ino, found.st_mtime_ns, found.st_size)
        if seen != self._seen:
            try:
                self._content = _decoder.decode(path.read_bytes())
            except (msgspec.DecodeError, RecursionError) as error:
                log.warning("%s is damaged or of another release, and ignored: %s", path, error)
                self._content = Content()
            self._seen = seen
        return self._content

    def put(self, record: StampedRecord) -> None:
        """Stamp a record and put it in place of the former one.

        Raises `OSError`, `LocalFileError`, `RegistryUnavailable`, and `ValueError` if it is out of
        bounds.
        """
        encoded(record)
        with self._changing() as content:
            records, key = _records(content, record), record.key
            if key not in records and len(records) >= MAX_DECISIONS:
                raise RegistryUnavailable(f"{self._folder} is full")
            stamped = msgspec.structs.replace(record, stamp=self._stamp(content))
            records[key] = msgspec.Raw(encoded(stamped))
            _note_change(content, record)

    def remove(self, record: StampedRecord) -> None:
        """Remove the record with the key of this one, if it is there. Raises as `put` does."""
        with self._changing() as content:
            if _records(content, record).pop(record.key, None) is not None:
                self._stamp(content)
                _note_change(content, record)

    def _stamp(self, content: Content) -> int:
        """Return a stamp that is greater than any before it, unless one is from the future."""
        now = int(self._clock() * 1e6)
        is_near = content.stamp <= now + AHEAD_US
        content.stamp = max(now, content.stamp + 1) if is_near else now
        return content.stamp

    @contextmanager
    def _changing(self) -> Iterator[Content]:
        with locked(self._folder):
            content = self.content()
            self._seen = None  # another change may fail on its way
            yield content
            replace_file(self._folder / DECISIONS, msgspec.json.encode(content))


def _records(content: Content, record: StampedRecord) -> dict[str, msgspec.Raw]:
    """Return the records of a kind."""
    match record:
        case CacheDecision():
            return content.caches
        case IoDecision():
            return content.ios
    return content.jobs


def _note_change(content: Content, record: StampedRecord) -> None:
    if isinstance(record, CacheDecision):
        content.cache_version = content.stamp


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Make the folder if it is missing, and be the only process that changes it.

    Raises `RegistryUnavailable` if another one does for long, `LocalFileError` if other users have
    access to the folder, and `OSError`.
    """
    make_private(folder)
    fd = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        ends = time.monotonic() + LOCK_S
        while True:
            with suppress(BlockingIOError):
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            if time.monotonic() > ends:
                raise RegistryUnavailable(f"{folder} has been locked by another process for long")
            time.sleep(_STEP_S)
        yield
    finally:
        os.close(fd)


def replace_file(path: Path, content: bytes) -> None:
    """Replace a file as one step. The caller has the lock. Raises `OSError`."""
    temporary = path.with_name(f".{path.name}")
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with open(fd, "wb") as file:
        file.write(content)
    os.rename(temporary, path)
