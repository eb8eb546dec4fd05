"""Mutable values in a store of immutable objects: `<prefix><name>/<number>`, greatest number valid.

A writer creates the next number and then deletes the smaller ones. A crash in between leaves
smaller numbers, which are ignored. An unreadable greatest number is never replaced by a smaller
one: that would present an older value as the current one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from chunkstore.errors import Corrupt, NotFound, Unavailable
from chunkstore.stores.object_store import ObjectStore

Value = TypeVar("Value")
# A folder on a disk may contain foreign files.
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_NUMBER: Final = re.compile(r"[0-9]{16}")
_TRIES: Final = 20


@dataclass(frozen=True, slots=True)
class NumberedObject:
    """One number of one name, as a listing shows it."""

    key: str
    number: int
    size_bytes: int


Numbers = Mapping[str, tuple[NumberedObject, ...]]
"""Name -> its objects in order of their numbers."""


@dataclass(frozen=True, slots=True)
class NumberedListing(Generic[Value]):
    """All numbered objects below a prefix."""

    values: Mapping[str, Value]
    """Name -> the value in its greatest number, sorted by name."""
    damaged: Mapping[str, str]
    """Name -> the reason why its greatest number cannot be read."""
    objects: Numbers


def list_numbers(store: ObjectStore, prefix: str, name: str | None = None) -> Numbers:
    """Return the objects of all names, or of one name.

    Costs one listing; other keys below `prefix` are ignored.
    """
    found: dict[str, list[NumberedObject]] = {}
    for info in store.list(prefix if name is None else f"{prefix}{name}/"):
        known, _, number = info.key.removeprefix(prefix).rpartition("/")
        if _NAME.fullmatch(known) and _NUMBER.fullmatch(number):
            entry = NumberedObject(info.key, int(number), info.size_bytes)
            found.setdefault(known, []).append(entry)
    return {
        known: tuple(sorted(found[known], key=lambda entry: entry.number))
        for known in sorted(found)
    }


def list_present(
    store: ObjectStore,
    prefix: str,
    limit_bytes: int,
    decode: Callable[[bytes, str, int], Value],
    name: str | None = None,
) -> NumberedListing[Value]:
    """Return the current value of each name, or of one name. One listing and one get for each name.

    `decode(data, name, number)` raises `Corrupt`. At most `limit_bytes` of an object are read.
    """
    objects = list_numbers(store, prefix, name)
    values: dict[str, Value] = {}
    damaged: dict[str, str] = {}
    for known, entries in objects.items():
        try:
            value = _newest(store, prefix, known, entries, limit_bytes, decode)
        except Corrupt as error:
            damaged[known] = str(error)
        else:
            if value is not None:
                values[known] = value
    return NumberedListing(values, damaged, objects)


def _newest(
    store: ObjectStore,
    prefix: str,
    name: str,
    entries: tuple[NumberedObject, ...],
    limit_bytes: int,
    decode: Callable[[bytes, str, int], Value],
) -> Value | None:
    """Return the value of the greatest number, or None if all were deleted since the listing."""
    for _ in range(_TRIES):
        if not entries:
            return None
        newest = entries[-1]
        try:
            return decode(read_bounded(store, newest.key, limit_bytes), name, newest.number)
        except NotFound:  # another writer has created the next one and deleted this
            entries = list_numbers(store, prefix, name).get(name, ())
    raise Unavailable(f"cannot read {prefix}{name}: it changes too quickly; try again")


def read_bounded(store: ObjectStore, key: str, limit_bytes: int) -> bytes:
    """Return the whole object if it has at most `limit_bytes`.

    Raise `Corrupt` if it is longer, and `NotFound` if there is none.
    """
    data = store.get_range(key, 0, limit_bytes + 1)
    if len(data) > limit_bytes:
        raise Corrupt(f"{key} is longer than its limit of {limit_bytes} bytes")
    return bytes(data)
