"""Objects in a Ceph pool, through librados: no gateway between, so small ranges take a seventh of the time that they take by S3.

    rados://POOL/NAMESPACE?conf=/etc/ceph/ceph.conf&user=client.images

Ceph refuses writes above 90 MB and objects above 128 MB, so a larger one (one large file in a chunk of its own) lies in parts: `KEY` has the first, and says
how long it is in all; `KEY`, a tilde and a number have the others, and are written before it, so that the key appears when all is there. A
tilde is in no key of ours. Credentials are in the keyring that the configuration names. librados does not survive a fork: see `forked_store`.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, TypeVar
from urllib.parse import parse_qsl, unquote, urlsplit

from chunkstore.errors import (
    AlreadyExists,
    ChunkStoreError,
    Denied,
    NotFound,
    StoreFull,
    Unavailable,
)
from chunkstore.stores.object_store import Buffer, ObjectInfo

T = TypeVar("T")
_log = logging.getLogger(__name__)

PART_BYTES: Final = 32 << 20
TIMEOUT_S: Final = 18
"""Of one operation: below the 20 s after which `chunkstore.stores.deadline` gives it up."""
_SIZE: Final = "dieselfs.size"
"""An attribute of the first of several parts: bytes in all, as digits."""
_SETTINGS: Final = {
    "rados_osd_op_timeout": str(TIMEOUT_S),
    "rados_mon_op_timeout": str(TIMEOUT_S),
    "client_mount_timeout": str(TIMEOUT_S),
}


class RadosStore:
    """Implements `ObjectStore` for the process that made it. Pickles to its address. Connects at the first call.

    `ValueError` for an address that is none, or if librados is missing. Listing asks for the size of each object: 0.2 ms each.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        parts = urlsplit(url, allow_fragments=False)
        options = dict(parse_qsl(parts.query, strict_parsing=bool(parts.query)))
        unknown = sorted(set(options) - {"conf", "user"})
        if not parts.netloc or "@" in parts.netloc or ":" in parts.netloc:
            raise ValueError("it names no pool: who logs in is said by user=, how by the keyring")
        if unknown:
            raise ValueError(f"{unknown[0]}= is not an option of rados:// (conf and user are)")
        self._pool = unquote(parts.netloc)
        self._namespace = unquote(parts.path).strip("/")
        self._conf = options.get("conf", "/etc/ceph/ceph.conf")
        self._user = options.get("user", "client.admin")
        self._rados = _library()
        self._lock = threading.Lock()
        self._opened: Any = None

    def __reduce__(self) -> tuple[type[RadosStore], tuple[str]]:
        return type(self), (self.url,)

    def create(self, key: str, parts: Iterable[Buffer]) -> None:
        left = iter(parts)
        first, more = _part(left, b"")
        if not more:
            self._run(key, lambda: self._create(key, first))
            return
        if self._exists(key):
            raise AlreadyExists(key)
        size, count = len(first), 1
        try:
            while more:
                part, more = _part(left, more)
                name = _part_name(key, count)
                self._run(name, lambda name=name, part=part: self._io().write_full(name, part))  # type: ignore[misc]
                size, count = size + len(part), count + 1
        except BaseException:
            self._remove_parts(key, count)
            raise
        try:
            self._run(key, lambda: self._create(key, first, size))
        except AlreadyExists:
            raise
        except Unavailable:  # it may be done, or will be: without its parts it would be damaged
            if not self._has(key, size):
                raise
        except ChunkStoreError:
            self._remove_parts(key, count - 1)
            raise

    def get(self, key: str) -> bytes:
        return self.get_range(key, 0, self.stat(key).size_bytes)

    def get_range(self, key: str, offset: int, length: int) -> bytes:
        if offset + length <= PART_BYTES:
            return self._run(key, lambda: self._read(key, offset, length))
        size = self.stat(key).size_bytes
        end = min(offset + length, size)
        found = []
        for number in range(offset // PART_BYTES, -(-end // PART_BYTES)):
            begin = number * PART_BYTES
            start, stop = max(offset, begin) - begin, min(end - begin, PART_BYTES)
            name = _part_name(key, number)
            part = self._run(name, lambda: self._read(name, start, stop - start))  # noqa: B023
            if len(part) != stop - start:
                raise Unavailable(f"{key}: its part {number} is not there, or is cut short")
            found.append(part)
        return b"".join(found)

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        entries = self._run(prefix, lambda: iter(self._io().list_objects()))
        while True:
            entry = self._run(prefix, lambda: next(entries, None))
            if entry is None:
                return
            if entry.key.startswith(prefix) and "~" not in entry.key:
                try:
                    yield self.stat(entry.key)
                except NotFound:
                    continue  # deleted since

    def delete(self, key: str) -> None:
        try:
            count = -(-self.stat(key).size_bytes // PART_BYTES)
        except NotFound:  # or the rest of one that was being deleted, from its end
            count = 1
            while self._exists(_part_name(key, count)):
                count += 1
        self._remove(key)  # first: half of an object is none
        for number in reversed(range(1, count)):
            self._remove(_part_name(key, number))

    def stat(self, key: str) -> ObjectInfo:
        size, _ = self._run(key, lambda: self._io().stat(key))
        if size == PART_BYTES:
            size = self._run(key, lambda: self._total(key, size))
        return ObjectInfo(key, size)

    def _create(self, key: str, data: bytes, total: int | None = None) -> None:
        with self._rados.WriteOpCtx() as operation:  # a used one would be empty, and succeed
            operation.new(self._rados.LIBRADOS_CREATE_EXCLUSIVE)
            operation.write_full(data)
            if total is not None:
                operation.set_xattr(_SIZE, str(total).encode())
            self._io().operate_write_op(operation, key)

    def _read(self, name: str, offset: int, length: int) -> bytes:
        if not length:
            self._io().stat(name)
            return b""
        data: bytes = self._io().read(name, length, offset)
        return data

    def _total(self, key: str, size: int) -> int:
        try:
            return int(self._io().get_xattr(key, _SIZE))
        except self._rados.NoData:
            return size

    def _exists(self, key: str) -> bool:
        try:
            self._run(key, lambda: self._io().stat(key))
        except NotFound:
            return False
        return True

    def _has(self, key: str, size: int) -> bool:
        try:
            return self.stat(key).size_bytes == size
        except ChunkStoreError:
            return False

    def _remove_parts(self, key: str, last: int) -> None:
        """As far as the store lets: whoever comes here has another error to tell, and an outage would be waited for part by part."""
        try:
            for number in range(last, 0, -1):
                self._remove(_part_name(key, number))
        except ChunkStoreError as error:
            _log.warning("%s: parts of an object that was not stored are left: %s", key, error)

    def _remove(self, name: str) -> None:
        try:
            self._run(name, lambda: self._io().remove_object(name))
        except NotFound:
            pass

    def _io(self) -> Any:
        if self._opened is None:
            with self._lock:
                if self._opened is None:
                    self._opened = self._connect()
        return self._opened

    def _connect(self) -> Any:
        cluster = self._rados.Rados(conffile=self._conf, name=self._user, conf=_SETTINGS)
        cluster.connect(timeout=TIMEOUT_S)
        try:
            opened = cluster.open_ioctx(self._pool)
        except self._rados.ObjectNotFound:
            raise Denied(
                f"pool {self._pool} does not exist: make it, or correct the address of the store"
            ) from None
        opened.set_namespace(self._namespace)
        return opened

    def _run(self, key: str, operation: Callable[[], T]) -> T:
        try:
            return operation()
        except self._rados.Error as error:
            raise self._translated(error, key) from error

    def _translated(self, error: Any, key: str) -> ChunkStoreError:
        rados = self._rados
        match error:
            case rados.ObjectExists():
                return AlreadyExists(key)
            case rados.ObjectNotFound() if self._opened is None:
                return Denied(
                    f"{self._conf} can't be read, or has no keyring for {self._user} ({error}); correct conf= or user="
                )
            case rados.ObjectNotFound():
                return NotFound(key)
            case rados.NoSpace():
                return StoreFull(f"{key}: {error}")
            case rados.PermissionError() | rados.PermissionDeniedError() if self._opened is None:
                return Denied(
                    f"the cluster refuses {self._user}: check user= and the keyring that {self._conf} names ({error})"
                )
            case rados.PermissionError() | rados.PermissionDeniedError():
                return Denied(
                    f"{key}: {self._user} may not do it in pool {self._pool} ({error}); it needs rwx there"
                )
        return Unavailable(f"{key}: {error}")


def _library() -> Any:
    try:
        import rados
    except ImportError:
        raise ValueError(
            "librados for Python is missing; install python3-rados, and link its rados.cpython-*.so"
            " into this environment's site-packages"
        ) from None
    return rados


def _part(left: Iterator[Buffer], begun: bytes) -> tuple[bytes, bytes]:
    """The next `PART_BYTES` (fewer at the end), and what has come beyond them: empty only at the end."""
    data = bytearray(begun)
    for more in left:
        data += more
        if len(data) > PART_BYTES:
            break
    return bytes(data[:PART_BYTES]), bytes(data[PART_BYTES:])


def _part_name(key: str, number: int) -> str:
    return f"{key}~{number}" if number else key
