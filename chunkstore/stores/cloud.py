"""Objects in S3, Google Cloud Storage or Azure, through obstore.

obstore's blocking calls release the GIL. This module checks what obstore does not: that a body has
the length of the object, or of the requested range. The checksums of chunks verify the content.
obstore's threads do not survive a fork: see `forked_store`.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from typing import Any, Final

import obstore

from chunkstore.errors import (
    AlreadyExists,
    ChunkStoreError,
    Corrupt,
    NotFound,
    Unavailable,
    Untrusted,
)
from chunkstore.object_keys import dataset_of_chunk
from chunkstore.stores.cloud_errors import (
    brief,
    ignores_the_range,
    is_beyond_the_end,
    is_refusal,
    lacks_e_tag,
    translated,
)
from chunkstore.stores.cloud_listing import PAGE_ENTRIES, ListingCheck, awaited, next_page
from chunkstore.stores.cloud_location import CloudLocation, Opened
from chunkstore.stores.object_store import Buffer, ObjectInfo

SINGLE_PUT_BYTES: Final = 32 << 20
"""The largest object that one request puts, which makes the put create-only.

Larger objects are only chunks of one large file, whose names no other writer creates.
"""
PAST_CACHES_S: Final = 10.0
"""Seconds for which an object is read past caches after damaged bytes of it have come."""
_PART_BYTES: Final = 16 << 20
"""The size of a part; 10,000 parts are the most that S3 takes: 160 GB."""
_PARTS_AT_ONCE: Final = 4
_COMPARED_BYTES: Final = 64 << 10
"""The largest object whose content is compared when it is stored: commits, tags and leases."""
_LISTED_FROM: Final = 4
"""From that many uploads on a listing checks them; fewer are asked for one by one."""
_ABSENT: Final = ".dieselfs-no-such-object"
"""A key that DieselFS never creates, to see how the store answers for a missing object."""


class CloudStore:
    """An `ObjectStore` for the process that created it. Pickles to its address.

    The pickle has no credentials: a process that unpickles it finds them again. `url` has the form
    of `chunkstore.stores.cloud_location`; an invalid one raises `ValueError`. The constructor sends
    no request.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self._location = CloudLocation.parse(url)
        self._store = self._location.open()
        self._suspect_until: dict[str, float] = {}
        """For each object of which damaged bytes came, the time until which caches are passed."""
        self._listed_behind: dict[str, int] = {}
        """The sizes of objects behind those that were checked last, at most one page of them."""

    def __reduce__(self) -> tuple[type[CloudStore], tuple[str]]:
        return type(self), (self.url,)

    def create(self, key: str, parts: Iterable[Buffer]) -> None:
        """Create an object, by a multipart upload if it is large, and ask the store for it.

        Raises `Untrusted` if the store has not what it acknowledged. A chunk above 64 KiB that one
        request puts is not asked for, if the store lists from a key: see `check_created`.
        """
        left = iter(parts)
        first: list[Buffer] = []
        size_bytes = 0
        for part in left:
            first.append(part)
            size_bytes += len(part)
            if size_bytes > SINGLE_PUT_BYTES:
                self._create_large(key, _joined(itertools.chain(first, left)))
                return
        try:
            obstore.put(self._store, key, first, mode="create", use_multipart=False)
        except Exception as error:
            if not lacks_e_tag(error):  # a success of somebody else than the store
                raise self._not_created(error, key) from error
        is_deferred = self._location.lists_from_a_key and dataset_of_chunk(key) is not None
        if size_bytes <= _COMPARED_BYTES or not is_deferred:
            self._check_stored(key, size_bytes, first)

    def get(self, key: str) -> memoryview:
        """Return a whole object."""
        return self._read(key, None)

    def get_range(self, key: str, offset: int, length: int) -> memoryview:
        """Return a range of an object."""
        if not length:
            return memoryview(b"")
        try:
            return self._read(key, (offset, offset + length))
        except Unavailable as error:
            if ignores_the_range(error):
                raise Corrupt(
                    f"the server answers a range of {key} as if all of it were asked for"
                ) from error
            if not is_beyond_the_end(error):
                raise
            size_bytes = self.stat(key).size_bytes
            if offset >= size_bytes:
                return memoryview(b"")
            # The store has answered, so that waiting for it would not help.
            raise Corrupt(
                f"{key} has {size_bytes} bytes, but the store answers that it ends before "
                f"byte {offset}"
            ) from error

    def forget(self, key: str) -> bool:
        """Read the object past caches and proxies for `PAST_CACHES_S`; return True.

        These reads have connections of their own.
        """
        now = time.monotonic()
        kept = {each: until for each, until in self._suspect_until.items() if until > now}
        self._suspect_until = kept | {key: now + PAST_CACHES_S}
        return True

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """List objects; check an empty listing by a request for a missing object."""
        listing = ListingCheck(
            f"the listing of {prefix!r} by {self._location.shown}",
            ordered=self._location.is_ordered,
        )
        for page in self._pages(prefix, listing):
            yield from page
        if not listing.keys:
            self._check_that_absence_is_reported()

    def _pages(
        self, prefix: str, listing: ListingCheck, after: str | None = None
    ) -> Iterator[Sequence[ObjectInfo]]:
        """Yield the objects below a prefix, from the first key behind `after` on."""
        below = prefix.rstrip("/") or None
        stream = obstore.list(self._store, below, offset=after, chunk_size=PAGE_ENTRIES)
        try:
            while page := next_page(stream):
                for entry in page:
                    listing.check(entry["path"], entry["size"])
                yield [
                    ObjectInfo(entry["path"], entry["size"])
                    for entry in page
                    if entry["path"].startswith(prefix) and entry["path"]
                ]
        except Exception as error:
            raise self._translated(error, prefix) from error

    def later_keys(self, prefix: str, after: str) -> Sequence[str] | None:
        """Return the keys after one; some stores send those before it too."""
        start = after if self._location.lists_from_a_key else None
        listing = ListingCheck(
            f"the listing of {prefix!r} by {self._location.shown}",
            ordered=self._location.is_ordered,
        )
        pages = self._pages(prefix, listing, start)
        return [info.key for page in pages for info in page if info.key > after]

    def folders(self, prefix: str) -> Sequence[str]:
        """Return the names below a prefix, by a listing with a delimiter."""
        below = prefix.rstrip("/") or None
        try:
            found = awaited(lambda: obstore.list_with_delimiter_async(self._store, prefix=below))
        except Exception as error:
            raise self._translated(error, prefix) from error
        if not found["common_prefixes"]:
            self._check_that_absence_is_reported()
        return [str(name).rstrip("/").rpartition("/")[2] for name in found["common_prefixes"]]

    def delete(self, key: str) -> None:
        """Delete an object."""
        try:
            obstore.delete(self._store, key)
        except Exception as error:
            problem = self._translated(error, key)
            if not isinstance(problem, NotFound):
                raise problem from error

    def stat(self, key: str) -> ObjectInfo:
        """Return the size of an object."""
        try:
            return ObjectInfo(key, obstore.head(self._store, key)["size"])
        except FileNotFoundError as error:
            raise self._translated(error, key) from error
        except Exception as error:
            if is_refusal(error):  # the answer to a HEAD gives no reason, that to a GET does
                self._read(key, (0, 1))
            raise self._translated(error, key) from error

    def check_created(self, sizes: Mapping[str, int]) -> None:
        """See `DefersChecks`. Costs one request, and one for each object that its answer lacks.

        The request is a listing. It begins at the smallest key, because the keys of one commit lie
        close together: they begin with the time. What comes behind the greatest key is kept for the
        next check, which may need no request at all. The store's listings need not know the newest
        objects: those that are missing, or differ, are asked for.
        """
        if not self._location.lists_from_a_key:
            return  # `create` has checked each of them
        large = {key: size for key, size in sizes.items() if size > _COMPARED_BYTES}
        left = _unlike(self._listed_behind, large)
        if len(left) >= _LISTED_FROM:
            left = _unlike(self._listed_from(min(left), max(left), len(left)), left)
        for key, size_bytes in left.items():
            self._check_stored(key, size_bytes)

    def _read(self, key: str, wanted: tuple[int, int] | None) -> memoryview:
        options: Any = None if wanted is None else {"range": wanted}
        try:
            answer = obstore.get(self._store_of(key), key, options=options)
            size = answer.meta["size"]
            data = memoryview(answer.bytes())  # copying would cost a fifth of the client's time
        except Exception as error:
            raise self._translated(error, key) from error
        start, end = wanted or (0, size)
        expected = min(end, size) - start
        if len(data) != expected:
            raise Unavailable(f"{key}: the store sent {len(data)} bytes instead of {expected}")
        return data

    def _store_of(self, key: str) -> Opened:
        if self._suspect_until.get(key, 0.0) > time.monotonic():
            return self._store_past_caches
        return self._store

    @cached_property
    def _store_past_caches(self) -> Opened:
        """The store for reads after damage."""
        return self._location.open(past_caches=True)

    @cached_property
    def _store_of_parts(self) -> Opened:
        """The store of multipart uploads, whose parts are retried."""
        return self._location.open(retries_parts=True)

    def _create_large(self, key: str, parts: Iterator[bytes]) -> None:
        """Create a large object by a multipart upload, with some parts at a time.

        The object appears whole or not at all, but of two concurrent creators the last one wins.
        """
        store = self._store_of_parts
        try:
            obstore.head(store, key)
        except FileNotFoundError:
            pass
        except Exception as error:
            raise self._translated(error, key) from error
        else:
            raise AlreadyExists(key)
        source = _Watched(parts)
        try:
            obstore.put(
                store,
                key,
                source,
                use_multipart=True,
                chunk_size=_PART_BYTES,
                max_concurrency=_PARTS_AT_ONCE,
            )
        except Exception as error:
            if source.error is not None:  # the cause of any failure of the upload
                raise source.error from None
            problem = self._not_created(error, key)
            if not (isinstance(problem, Unavailable) and source.ended and self._has(key, source)):
                raise problem from error
        self._check_stored(key, source.size_bytes)

    def _check_stored(self, key: str, size_bytes: int, content: Sequence[Buffer] = ()) -> None:
        """Raise `Untrusted` unless the store has an object of this size, whatever it answered.

        A proxy may answer an upload with a page of its own and success, and a server may store less
        than it got. If `content` is given, and is small, it is compared too: a commit that another
        writer made has the same size. Costs one request.
        """
        found: int | None = None
        has = "has no such object"
        with suppress(NotFound):
            if content and size_bytes <= _COMPARED_BYTES:
                data = self.get(key)
                if data == b"".join(content):
                    return
                found = len(data)
            else:
                found = self.stat(key).size_bytes
                if found == size_bytes:
                    return
        if found is not None:
            has = f"has {found:,} bytes of it" if found != size_bytes else "has other bytes"
        raise Untrusted(
            f"{self._location.shown} answered the upload of {key} ({size_bytes:,} bytes) with "
            f"success, but {has}; check the store, and proxies in front of it"
        )

    def _listed_from(self, first: str, last: str, count: int) -> dict[str, int]:
        """Return the sizes of the objects from one key to another, and of some behind these.

        The listing ends early if it has many more than `count` objects: the server may have begun
        it somewhere else.
        """
        what = f"a listing from {first!r} on by {self._location.shown}"
        listing = ListingCheck(what, ordered=True)
        prefix = f"{first.rpartition('/')[0]}/"
        found: dict[str, int] = {}
        behind: dict[str, int] = {}
        for page in self._pages(prefix, listing, after=first[:-1]):
            for info in page:
                (behind if info.key > last else found)[info.key] = info.size_bytes
            if behind or listing.keys > PAGE_ENTRIES + 4 * count:
                break
        self._listed_behind = behind
        return found

    def _has(self, key: str, source: _Watched) -> bool:
        """Return whether the upload was completed and only its answer was lost."""
        try:
            return self.stat(key).size_bytes == source.size_bytes
        except ChunkStoreError:
            return False

    def _check_that_absence_is_reported(self) -> None:
        """Raise `Unavailable` if the store does not report missing objects.

        obstore takes any page for an empty listing: that of a proxy, or of a console whose port was
        given instead of the store's.
        """
        try:
            obstore.head(self._store, _ABSENT)
        except Exception:
            return
        raise Unavailable(
            "the server at the address of the store is not an object store: "
            "it reports that an object exists which does not; correct the address"
        )

    def _not_created(self, error: Exception, key: str) -> Exception:
        problem = self._translated(error, key)
        if isinstance(problem, NotFound):  # the upload to complete, or its bucket, is missing
            return Unavailable(f"{key}: {brief(str(error))}")
        return problem

    def _translated(self, error: Exception, key: str) -> Exception:
        return translated(error, key, self._location.scheme)


def _unlike(known: Mapping[str, int], sizes: Mapping[str, int]) -> dict[str, int]:
    """Return those of `sizes` that are unknown or known otherwise."""
    return {key: size for key, size in sizes.items() if known.get(key) != size}


class _Watched:
    """An iterator that records its progress and its own exception, which is not the store's."""

    def __init__(self, parts: Iterator[bytes]) -> None:
        self._parts = parts
        self.error: BaseException | None = None
        self.ended = False
        self.size_bytes = 0

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        try:
            part = next(self._parts)
        except StopIteration:
            self.ended = True
            raise
        except BaseException as error:
            self.error = error
            raise
        self.size_bytes += len(part)
        return part


def _joined(parts: Iterator[Buffer]) -> Iterator[bytes]:
    """Yield the same bytes in parts of an upload's part size, since each part is one step."""
    kept = bytearray()
    for part in parts:
        kept += part
        if len(kept) >= _PART_BYTES:
            yield bytes(kept)
            kept = bytearray()
    if kept:
        yield bytes(kept)
