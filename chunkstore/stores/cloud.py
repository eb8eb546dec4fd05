"""Objects in S3, Google Cloud Storage or Azure, through obstore, whose blocking calls release the GIL.

What obstore does not see is checked here: that a body is as long as the object, or as the part of it that was asked for. Whether it is the right one is
for the checksums of chunks to say. obstore's threads do not survive a fork: see `forked_store`.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator
from typing import Any, Final

import obstore
from obstore import exceptions

from chunkstore.errors import (
    AlreadyExists,
    ChunkStoreError,
    Denied,
    NotFound,
    StoreFull,
    Unavailable,
)
from chunkstore.stores.cloud_location import CloudLocation
from chunkstore.stores.object_store import Buffer, ObjectInfo

SINGLE_PUT_BYTES: Final = 32 << 20
"""Up to here an object is put by one request, which is what makes it create-only. Above are only chunks of one large file, whose names nobody else makes."""
_PART_BYTES: Final = 16 << 20
"""10,000 parts are the most that S3 takes: 160 GB."""
_PARTS_AT_ONCE: Final = 4
_FULL: Final = re.compile("QuotaExceeded|EntityTooLarge|InsufficientStorage|507 ")
_BEYOND_THE_END: Final = "416 "
_ROLE: Final = "169.254.169.254"
"""Where a machine in a cloud asks for the credentials of its role."""
_NO_BUCKET: Final = re.compile("NoSuchBucket|ContainerNotFound|specified bucket does not exist")


class CloudStore:
    """Implements `ObjectStore` for the process that made it. Pickles to its address: credentials are found anew.

    `url` as in `chunkstore.stores.cloud_location`; `ValueError` if it is none. Nothing is asked of the store yet.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self._store = CloudLocation.parse(url).open()

    def __reduce__(self) -> tuple[type[CloudStore], tuple[str]]:
        return type(self), (self.url,)

    def create(self, key: str, parts: Iterable[Buffer]) -> None:
        left = iter(parts)
        first = bytearray()
        for part in left:
            first += part
            if len(first) > SINGLE_PUT_BYTES:
                self._create_large(key, itertools.chain([bytes(first)], _joined(left)))
                return
        try:
            obstore.put(self._store, key, bytes(first), mode="create", use_multipart=False)
        except Exception as error:
            raise _translated(error, key) from error

    def get(self, key: str) -> memoryview:
        return self._read(key, None)

    def get_range(self, key: str, offset: int, length: int) -> memoryview:
        if not length:
            return memoryview(b"")
        try:
            return self._read(key, (offset, offset + length))
        except Unavailable as error:
            if _BEYOND_THE_END in str(error) and offset >= self.stat(key).size_bytes:
                return memoryview(b"")
            raise

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        try:
            for page in obstore.list(self._store, prefix=prefix.rstrip("/") or None):
                for entry in page:
                    if entry["path"].startswith(prefix):
                        yield ObjectInfo(entry["path"], entry["size"])
        except Exception as error:
            raise _translated(error, prefix) from error

    def delete(self, key: str) -> None:
        try:
            obstore.delete(self._store, key)
        except FileNotFoundError as error:
            if _NO_BUCKET.search(str(error)):
                raise _translated(error, key) from error
        except Exception as error:
            raise _translated(error, key) from error

    def stat(self, key: str) -> ObjectInfo:
        try:
            return ObjectInfo(key, obstore.head(self._store, key)["size"])
        except Exception as error:
            raise _translated(error, key) from error

    def _read(self, key: str, wanted: tuple[int, int] | None) -> memoryview:
        options: Any = None if wanted is None else {"range": wanted}
        try:
            answer = obstore.get(self._store, key, options=options)
            size = answer.meta["size"]
            data = memoryview(answer.bytes())  # a copy would cost a fifth of the client's time
        except Exception as error:
            raise _translated(error, key) from error
        start, end = wanted or (0, size)
        expected = min(end, size) - start
        if len(data) != expected:
            raise Unavailable(f"{key}: {len(data)} bytes came instead of {expected}")
        return data

    def _create_large(self, key: str, parts: Iterator[bytes]) -> None:
        """By parts, some at a time. It appears whole or not at all, but of two creators at once the last wins."""
        try:
            obstore.head(self._store, key)
        except FileNotFoundError:
            pass
        except Exception as error:
            raise _translated(error, key) from error
        else:
            raise AlreadyExists(key)
        source = _Watched(parts)
        try:
            obstore.put(
                self._store,
                key,
                source,
                use_multipart=True,
                chunk_size=_PART_BYTES,
                max_concurrency=_PARTS_AT_ONCE,
            )
        except Exception as error:
            if source.error is not None:  # whatever became of the upload: this is why
                raise source.error from None
            raise _translated(error, key) from error


class _Watched:
    """An iterator that remembers its own exception, which is not the store's."""

    def __init__(self, parts: Iterator[bytes]) -> None:
        self._parts = parts
        self.error: BaseException | None = None

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        try:
            return next(self._parts)
        except StopIteration:
            raise
        except BaseException as error:
            self.error = error
            raise


def _joined(parts: Iterator[Buffer]) -> Iterator[bytes]:
    """The same bytes in pieces of a part's size: small ones would each be a step of the upload."""
    kept = bytearray()
    for part in parts:
        kept += part
        if len(kept) >= _PART_BYTES:
            yield bytes(kept)
            kept = bytearray()
    if kept:
        yield bytes(kept)


def _translated(error: Exception, key: str) -> ChunkStoreError | Exception:
    """In our terms; what is not the store's passes unchanged. Messages of obstore hold addresses, and no credentials."""
    text = str(error)
    match error:
        case ChunkStoreError():
            return error
        case _ if _ROLE in text:
            return Unavailable(
                f"{key}: neither the environment nor ~/.aws has credentials, and the machine's role can't be asked for: {_brief(text)}"
            )
        case FileNotFoundError() if _NO_BUCKET.search(text):
            return Denied("the bucket does not exist: make it, or correct the address of the store")
        case FileNotFoundError():
            return NotFound(key)
        case exceptions.AlreadyExistsError():
            return AlreadyExists(key)
        case exceptions.PermissionDeniedError() | exceptions.UnauthenticatedError():
            return StoreFull(_brief(text)) if _FULL.search(text) else Denied(_brief(text))
        case exceptions.PreconditionError():
            return Unavailable(f"{key}: {_brief(text)}")  # another creator is at it: look again
        case exceptions.BaseError():
            return (
                StoreFull(_brief(text))
                if _FULL.search(text)
                else Unavailable(f"{key}: {_brief(text)}")
            )
        case OSError():
            return Unavailable(f"{key}: {_brief(text)}")
        case _:
            return error


def _brief(text: str) -> str:
    """Its first line, without the debugging output that follows."""
    line = text.strip().partition("\n")[0]
    return line if len(line) <= 400 else f"{line[:400]}…"
