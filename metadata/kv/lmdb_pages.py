"""The check of an LMDB file page by page, with reads alone: LMDB never opens the file.

LMDB trusts its pages: it has no checksums, and a damaged page ends the process by an assertion
(SIGABRT) or by an address outside the map (SIGBUS, SIGSEGV). Here both trees of the newest commit,
that of the records and that of the free pages, are walked with every offset, number and order
checked. A part of the records is checked the same way, with what the caller knows of values.

The layout is that of LMDB 0.9 on a 64-bit little-endian machine, as `lmdb.open` makes it for an
index: one unnamed database without duplicates.
"""

from __future__ import annotations

import os
import struct
import sys
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Final

from metadata.errors import IndexDamaged, RecordCorrupt

_HEADER: Final = struct.Struct("<QHHHH")  # page number, padding, flags, lower, upper
_OVERFLOW: Final = struct.Struct("<QHHI")  # page number, padding, flags, pages
_META: Final = struct.Struct("<IIQQ" + 2 * "IHHQQQQQ" + "QQ")
_NODE: Final = struct.Struct("<HHHH")  # size or page (low, high), flags, size of the key
_NUMBER: Final = struct.Struct("<Q")
_HEADER_BYTES: Final = 16
_MAGIC: Final = 0xBEEFC0DE
_VERSION: Final = 1
_BRANCH, _LEAF, _OVERFLOWS, _META_PAGE, _DIRTY = 0x01, 0x02, 0x04, 0x08, 0x10
_BIG_VALUE: Final = 0x01
"""The flag of a node whose value lies on pages of its own."""
_NO_ROOT: Final = 2**64 - 1
_META_PAGES: Final = 2
_PAGE_SIZES: Final = tuple(1 << power for power in range(9, 17))
_MAX_DEPTH: Final = 32
_ATTEMPTS: Final = 5
"""The most walks of a file to which others commit; what no walk can decide counts as sound."""


class _Unsound(Exception):
    """A page is not as LMDB writes it."""


class _BadRecord(_Unsound):
    """A record is not as the index writes it, on a page that is sound."""


IsSound = Callable[[bytes, bytes], bool]
"""A function of a key of LMDB and its value: whether the value belongs there."""


@dataclass(frozen=True, slots=True)
class _Part:
    """The keys with a prefix: the part of the records that a partial walk is about."""

    prefix: bytes
    is_sound: IsSound

    def meets(self, low: bytes | None, high: bytes | None) -> bool:
        """Return whether keys from `low` up to `high`, exclusive, may have the prefix."""
        begins = low is None or low[: len(self.prefix)] <= self.prefix
        return begins and (high is None or high > self.prefix)


def check_pages(folder: Path) -> None:
    """Raise `IndexDamaged` if the LMDB file in `folder` is not sound; a missing one is sound.

    Others may write to it meanwhile: a walk counts only if no commit came in between, since LMDB
    reuses no page of the newest commit before the second commit after it. Costs 2 µs a record and a
    read of every page in use.
    """
    _look(folder, None)


def check_part(folder: Path, prefix: bytes, is_sound: IsSound) -> None:
    """Raise `IndexDamaged` if a page is not sound that has records of this prefix, or had them.

    `is_sound` is asked of every record on these pages; raises `RecordCorrupt` if one is not. Costs
    0.2 ms, and 3 µs a record.
    """
    _look(folder, _Part(prefix, is_sound))


def _look(folder: Path, part: _Part | None) -> None:
    if sys.byteorder != "little" or struct.calcsize("P") != 8:
        return
    try:
        descriptor = os.open(folder / "data.mdb", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:  # there is none, or opening it will tell why not
        return
    try:
        for _ in range(_ATTEMPTS):
            before = os.pread(descriptor, 2 * max(_PAGE_SIZES), 0)
            try:
                if before:  # an empty file is one that is being made
                    _check(descriptor, before, part)
                return
            except _Unsound as error:
                if os.pread(descriptor, 2 * max(_PAGE_SIZES), 0) == before:
                    raise _explained(error, folder) from error
    finally:
        os.close(descriptor)


def _explained(error: _Unsound, folder: Path) -> IndexDamaged | RecordCorrupt:
    if isinstance(error, _BadRecord):
        return RecordCorrupt(
            f"index {folder}: a record is damaged ({error}): `dlcmd recover DATASET` repairs it"
        )
    return IndexDamaged(
        f"index {folder}: its LMDB database is damaged ({error}): `dlcmd recover DATASET` moves it "
        "away and rebuilds it from the store",
        folder,
    )


@dataclass(frozen=True, slots=True)
class _Tree:
    """The description of a B-tree in a meta page."""

    flags: int
    depth: int
    branch_pages: int
    leaf_pages: int
    overflow_pages: int
    entries: int
    root: int


@dataclass(frozen=True, slots=True)
class _Meta:
    """One of the two meta pages; that with the greater transaction counts."""

    page_bytes: int
    free: _Tree
    main: _Tree
    last_page: int
    transaction: int


def _check(descriptor: int, start: bytes, part: _Part | None) -> None:
    meta = _newest_meta(start)
    if meta.last_page > 2**40:
        raise _Unsound("the number of the last page is too large")
    walk = _Walk(descriptor, meta, part)
    if part is not None:
        walk.tree(meta.main)
        return
    free = walk.free_pages()
    walk.tree(meta.main)
    if not free.isdisjoint(walk.visited):
        raise _Unsound("a page is both free and in use")


def _newest_meta(start: bytes) -> _Meta:
    first = _meta(start, 0)
    second = _meta(start, first.page_bytes)
    if second.page_bytes != first.page_bytes:
        raise _Unsound("the meta pages contradict each other")
    return max(first, second, key=lambda meta: meta.transaction)


def _meta(start: bytes, at: int) -> _Meta:
    if len(start) < at + _HEADER_BYTES + _META.size:
        raise _Unsound("it ends in a meta page")
    flags = _HEADER.unpack_from(start, at)[2]
    magic, version, _, _, *rest = _META.unpack_from(start, at + _HEADER_BYTES)
    if magic != _MAGIC or version != _VERSION or not flags & _META_PAGE:
        raise _Unsound("a meta page is overwritten")
    page_bytes = rest[0]
    free, main = _Tree(*rest[1:2], *rest[2:8]), _Tree(*rest[9:10], *rest[10:16])
    if page_bytes not in _PAGE_SIZES:
        raise _Unsound("a meta page has an impossible size of pages")
    return _Meta(page_bytes, free, main, rest[16], rest[17])


class _Walk:
    """A walk of the trees of one commit; every page is read once."""

    def __init__(self, descriptor: int, meta: _Meta, part: _Part | None) -> None:
        self.visited: set[int] = set()
        self._descriptor = descriptor
        self._meta = meta
        self._part = part
        self._leaves = self._branches = self._overflows = self._entries = 0
        self._previous: bytes | None = None
        self._by_number = False
        self._free: set[int] = set()

    def free_pages(self) -> set[int]:
        """Walk the tree of free pages and return what it names."""
        self._by_number = True
        self.tree(self._meta.free)
        self._by_number = False
        return self._free

    def tree(self, tree: _Tree) -> None:
        """Walk one tree and compare it with its description."""
        self._leaves = self._branches = self._overflows = self._entries = 0
        self._previous = None
        if tree.root == _NO_ROOT:
            if tree.entries or tree.depth:
                raise _Unsound("a tree without a root has entries")
        elif not 0 < tree.depth <= _MAX_DEPTH:
            raise _Unsound("a tree has an impossible depth")
        else:
            self._page(tree.root, tree.depth, None, None)
        if self._part is not None:
            return
        found = (self._branches, self._leaves, self._overflows, self._entries)
        if found != (tree.branch_pages, tree.leaf_pages, tree.overflow_pages, tree.entries):
            raise _Unsound("the pages of a tree do not add up to what its root says")

    def _read(self, number: int, pages: int = 1) -> bytes:
        last = number + pages - 1
        if not _META_PAGES <= number <= last <= self._meta.last_page:
            raise _Unsound(f"page {number} is outside the file")
        numbers = range(number, last + 1)
        if not self.visited.isdisjoint(numbers):
            raise _Unsound(f"page {number} is used twice")
        self.visited.update(numbers)
        size = self._meta.page_bytes
        data = os.pread(self._descriptor, size, number * size)
        if len(data) < size:
            raise _Unsound(f"page {number} is cut off")
        return data

    def _page(self, number: int, depth: int, low: bytes | None, high: bytes | None) -> None:
        """Walk the page and those below it: its keys are from `low` up to `high`, exclusive."""
        page = self._read(number)
        own, _, flags, _, _ = _HEADER.unpack_from(page)
        if own != number or flags & ~_DIRTY != (_LEAF if depth == 1 else _BRANCH):
            raise _Unsound(f"page {number} is another one, or overwritten")
        offsets = self._offsets(page, number)
        if depth == 1:
            self._leaves += 1
            self._leaf(page, number, offsets, low, high)
        else:
            self._branches += 1
            self._branch(page, number, offsets, depth, (low, high))

    def _offsets(self, page: bytes, number: int) -> tuple[int, ...]:
        _, _, _, lower, upper = _HEADER.unpack_from(page)
        count = (lower - _HEADER_BYTES) // 2
        if lower < _HEADER_BYTES + 2 or lower % 2 or not lower <= upper <= len(page):
            raise _Unsound(f"page {number} has impossible bounds")
        offsets = struct.unpack_from(f"<{count}H", page, _HEADER_BYTES)
        if min(offsets) < upper or max(offsets) > len(page) - _NODE.size:
            raise _Unsound(f"page {number} has a record outside itself")
        return offsets

    def _leaf(
        self,
        page: bytes,
        number: int,
        offsets: tuple[int, ...],
        low: bytes | None,
        high: bytes | None,
    ) -> None:
        part = self._part
        room, limit = len(page) - _HEADER.unpack_from(page)[4], len(page)
        previous = self._previous
        first = None
        for offset in offsets:
            size_low, size_high, flags, key_bytes = _NODE.unpack_from(page, offset)
            start = offset + 8
            end = start + key_bytes
            key = page[start:end]
            order = key[::-1] if self._by_number else key
            if first is None:
                first = order
            if previous is not None and previous >= order:
                raise _Unsound(f"page {number} is out of order")
            previous = order
            value_bytes = size_low | size_high << 16
            if flags == _BIG_VALUE:
                end += 8
                self._big_value(page, end, value_bytes, number)
            elif flags:
                raise _Unsound(f"page {number} has a record of an impossible kind")
            else:
                end += value_bytes
            if end > limit:
                raise _Unsound(f"page {number} has a record that leads beyond it")
            room -= end - offset + (end - offset) % 2
            if self._by_number:
                self._note_free(page, key, start + key_bytes, value_bytes, flags)
            elif part and not flags and not part.is_sound(key, page[end - value_bytes : end]):
                raise _BadRecord(f"page {number} has a damaged record")
        if room:
            raise _Unsound(f"page {number} has records that overlap, or lacks some")
        if (low is not None and first is not None and first < low) or (
            high is not None and previous is not None and previous >= high
        ):
            raise _Unsound(f"page {number} has records that belong elsewhere")
        self._previous = previous
        self._entries += len(offsets)

    def _branch(
        self,
        page: bytes,
        number: int,
        offsets: tuple[int, ...],
        depth: int,
        bounds: tuple[bytes | None, bytes | None],
    ) -> None:
        room = len(page) - _HEADER.unpack_from(page)[4]
        children: list[tuple[int, bytes]] = []
        for offset in offsets:
            low, middle, high, key_bytes = _NODE.unpack_from(page, offset)
            end = offset + 8 + key_bytes
            if end > len(page):
                raise _Unsound(f"page {number} has a record that leads beyond it")
            key = page[offset + 8 : end]
            children.append(
                (low | middle << 16 | high << 32, key[::-1] if self._by_number else key)
            )
            room -= end - offset + (end - offset) % 2
        if room:
            raise _Unsound(f"page {number} has records that overlap, or lacks some")
        lows = [bounds[0], *(key for _, key in children[1:])]
        highs = [*lows[1:], bounds[1]]
        wanted = self._wanted(lows, highs)
        for at, ((child, _), low_key, high_key) in enumerate(
            zip(children, lows, highs, strict=True)
        ):
            if at not in wanted:
                continue
            if low_key is not None and high_key is not None and low_key >= high_key:
                raise _Unsound(f"page {number} is out of order")
            self._page(child, depth - 1, low_key, high_key)

    def _wanted(
        self, lows: Sequence[bytes | None], highs: Sequence[bytes | None]
    ) -> Container[int]:
        """Return the numbers of the children to walk: with a part, those it meets, and the next.

        A damaged boundary between two of them shows on one side of it.
        """
        if self._part is None:
            return range(len(lows))
        met = [
            at
            for at, (low, high) in enumerate(zip(lows, highs, strict=True))
            if self._part.meets(low, high)
        ]
        return range(met[0] - 1, met[-1] + 2) if met else {0, len(lows) - 1}

    def _big_value(self, page: bytes, end: int, value_bytes: int, number: int) -> None:
        if end > len(page):
            raise _Unsound(f"page {number} has a record that leads beyond it")
        [first] = _NUMBER.unpack_from(page, end - 8)
        pages = -(-(_HEADER_BYTES + value_bytes) // self._meta.page_bytes)
        own, _, flags, said = _OVERFLOW.unpack_from(self._read(first, pages))
        if own != first or flags & ~_DIRTY != _OVERFLOWS or said != pages:
            raise _Unsound(f"page {first} is another one, or overwritten")
        self._overflows += pages

    def _note_free(self, page: bytes, key: bytes, start: int, value_bytes: int, flags: int) -> None:
        """Add the free pages of one record: key is a transaction, value a count and the numbers."""
        if len(key) != 8 or _NUMBER.unpack(key)[0] > self._meta.transaction:
            raise _Unsound("a record of free pages is of no transaction")
        value = page[start : start + value_bytes]
        if flags == _BIG_VALUE:
            [first] = _NUMBER.unpack_from(page, start)
            at = first * self._meta.page_bytes + _HEADER_BYTES
            value = os.pread(self._descriptor, value_bytes, at)
        count = _NUMBER.unpack_from(value)[0] if len(value) >= 8 else -1
        if not 0 <= count <= len(value) // 8 - 1:
            raise _Unsound("a record of free pages has an impossible length")
        numbers = struct.unpack_from(f"<{count}Q", value, 8)
        self._free.update(numbers)
        if any(after >= before for before, after in pairwise(numbers)) or (
            numbers and not _META_PAGES <= numbers[-1] <= numbers[0] <= self._meta.last_page
        ):
            raise _Unsound("a record of free pages is out of order")
