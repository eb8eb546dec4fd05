"""The two files by which a node's master shows its view to the node's other processes.

They lie in `peers/` of the task's folder in tmpfs, and only their user can access them. The master
replaces `view` by a rename whenever it publishes, at least once a second. Readers check at most
every 0.1 s whether it is another file, and decode it only then. `secret` is the task's, for the
processes that connect to peers themselves.

The view file has 8 bytes, xxh3_64 of the rest, little-endian; then msgpack `[version, published,
me, members, answered, silent]`.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final, Literal, TypeAlias

import xxhash
from msgspec import Meta, msgpack

from dieselfs.cache.ports.member_record import MemberRow, member_fields, member_from
from dieselfs.cache.ports.members import View
from dieselfs.cache.ports.secret import TaskSecret, read_secret_file
from dieselfs.cache.wire.messages import MAX_MEMBERS
from dieselfs.errors import LocalFileError, UsageError

log = logging.getLogger(__name__)

LOOK_EVERY_S: Final = 0.1
"""The interval between two checks of the file."""
OLDEST_S: Final = 10.0
"""The age at which a view is not used: a master that does not publish for so long is dead or
stopped.
"""
_MAX_BYTES: Final = 1 << 20
"""The limit of the view file: 1,024 members of 650 bytes and their times fit."""
_CHECKSUM_BYTES: Final = 8
_LIMIT: Final = Meta(max_length=MAX_MEMBERS)
_Fields: TypeAlias = tuple[
    Literal[1],
    float,
    MemberRow,
    Annotated[tuple[MemberRow, ...], _LIMIT],
    Annotated[dict[str, float], _LIMIT],
    Annotated[list[str], _LIMIT],
]
_DECODER: Final = msgpack.Decoder(_Fields)

_FileId: TypeAlias = tuple[int, int, int]
"""The inode, the time and the size of a file."""


@dataclass(frozen=True, slots=True)
class _Seen:
    """The result of the last check of the file."""

    until: float
    """The time of the next check."""
    file: _FileId | None
    published: float
    latest: View | None
    """The view in the file, whatever its age."""
    view: View | None
    """The view in the file, or None if it is too old."""


_NOTHING: Final = _Seen(float("-inf"), None, 0.0, None, None)


class ViewFile:
    """A `ViewBoard` in a task's folder. Thread-safe, and usable on both sides of a fork.

    It pickles as its path.
    """

    def __init__(self, folder: Path, now: Callable[[], float] = time.monotonic) -> None:
        """`folder` is the task's (`TaskFolder.path`).

        `now` is CLOCK_MONOTONIC, the same for all processes of the node.
        """
        self._folder = folder / "peers"
        self._view = os.fspath(self._folder / "view")
        self._secret = os.fspath(self._folder / "secret")
        self._now = now
        self._written: dict[str, _FileId] = {}
        """The files that this object has written last, by their paths."""
        self._seen = _NOTHING  # replaced as a whole, without a lock that a fork could find held

    def __reduce__(self) -> tuple[Any, ...]:
        return ViewFile, (self._folder.parent,)

    def publish(self, view: View) -> None:
        """Replace the view. Raises `OSError` if the file can't be written."""
        published = self._now()
        self._replace(self._view, _encode(view, published))
        self._seen = _NOTHING

    def withdraw(self) -> None:
        """Remove the view and the secret: there is no peer cache any more.

        Those of a later leader stay: the thread that withdraws may be late.
        """
        for path in (self._view, self._secret):
            with suppress(OSError):
                if _id_of(os.stat(path)) == self._written.get(path):
                    os.unlink(path)
        self._seen = _NOTHING

    def current(self) -> View | None:
        """See `ViewBoard`. Takes 0.1 µs, and every 0.1 s a `stat`.

        Returns None also if the master has not published for 10 s, or the file is damaged.
        """
        seen = self._seen
        now = self._now()
        if now >= seen.until:
            seen = self._look(seen, now)
            self._seen = seen
        return seen.view

    def write_secret(self, secret: TaskSecret) -> None:
        """Write the secret for the node's other processes."""
        self._replace(self._secret, secret.value)

    def read_secret(self) -> TaskSecret | None:
        """Return the secret, or None if there is no peer cache.

        Raises `LocalFileError` if users other than this one can access the file.
        """
        if not os.path.lexists(self._secret):
            return None
        try:
            return read_secret_file(Path(self._secret))
        except UsageError as error:
            hint = "remove the file and mount again: the mount writes a new one"
            raise LocalFileError(str(error), hint) from error

    def _look(self, seen: _Seen, now: float) -> _Seen:
        """Check the file.

        An older result that overwrites a newer one is corrected by the next check.
        """
        try:
            found = os.stat(self._view)
        except OSError:
            return _Seen(now + LOOK_EVERY_S, None, 0.0, None, None)
        file = _id_of(found)
        published, latest = seen.published, seen.latest
        if file != seen.file:
            published, latest = self._read()
        view = latest if abs(now - published) <= OLDEST_S else None
        return _Seen(now + LOOK_EVERY_S, file, published, latest, view)

    def _read(self) -> tuple[float, View | None]:
        try:
            with open(self._view, "rb") as file:
                data = file.read(_MAX_BYTES + 1)
            return _decode(data)
        except FileNotFoundError:
            return 0.0, None
        except (OSError, ValueError) as error:
            log.warning(
                "cannot read %s, so this process works without peers: %s", self._view, error
            )
            return 0.0, None

    def _replace(self, path: str, data: bytes) -> None:
        self._folder.mkdir(mode=0o700, exist_ok=True)
        fresh = f"{path}.{os.urandom(8).hex()}"
        fd = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            with open(fd, "wb") as file:
                file.write(data)
                file.flush()
                written = _id_of(os.fstat(fd))
            os.rename(fresh, path)
        except BaseException:
            with suppress(OSError):
                os.unlink(fresh)
            raise
        self._written[path] = written


def _id_of(found: os.stat_result) -> _FileId:
    return found.st_ino, found.st_mtime_ns, found.st_size


def _encode(view: View, published: float) -> bytes:
    me, members = member_fields(view.me), tuple(map(member_fields, view.members))
    fields: _Fields = (1, published, me, members, dict(view.answered), sorted(view.silent))
    body = msgpack.encode(fields)
    return xxhash.xxh3_64_intdigest(body).to_bytes(_CHECKSUM_BYTES, "little") + body


def _decode(data: bytes) -> tuple[float, View]:
    """Return the time of publication and the view. Raises `ValueError`."""
    body = data[_CHECKSUM_BYTES:]
    checksum = int.from_bytes(data[:_CHECKSUM_BYTES], "little")
    if not body or len(data) > _MAX_BYTES or checksum != xxhash.xxh3_64_intdigest(body):
        raise ValueError("the view is damaged")
    _, published, me, members, answered, silent = _DECODER.decode(body)
    every = tuple(map(member_from, members))
    return published, View(member_from(me), every, answered, frozenset(silent))
