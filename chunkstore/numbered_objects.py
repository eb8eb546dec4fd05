"""A value that changes, in a store where objects do not: `<prefix><name>/<number>`, of which the greatest number counts.

Whoever changes it creates the next number and deletes the smaller ones afterwards. A crash in between leaves smaller ones, which mean
nothing. A greatest number that can't be read is never replaced by a smaller one: that would be an older value, given as the present one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from chunkstore.errors import Corrupt, NotFound, Unavailable
from chunkstore.stores.object_store import ObjectStore

Value = TypeVar("Value")
# A folder on a disk collects strange files.
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
    """All that lies below a prefix."""

    values: Mapping[str, Value]
    """Name -> what its greatest number says, by name."""
    damaged: Mapping[str, str]
    """Name -> why its greatest number can't be read."""
    objects: Numbers


def list_numbers(store: ObjectStore, prefix: str, name: str | None = None) -> Numbers:
    """The objects of all names, or of one. One listing; other keys below `prefix` are ignored."""
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
    """What each name, or one, means now. One listing and one get a name.

    `decode(data, name, number)` raises `Corrupt`; no more than `limit_bytes` of an object are read.
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
    """What the greatest number says; None if all have been deleted since they were listed."""
    for _ in range(_TRIES):
        if not entries:
            return None
        newest = entries[-1]
        try:
            return decode(read_bounded(store, newest.key, limit_bytes), name, newest.number)
        except NotFound:  # somebody has created the next one and deleted this
            entries = list_numbers(store, prefix, name).get(name, ())
    raise Unavailable(f"{prefix}{name} changes too quickly to be read; try again")


def read_bounded(store: ObjectStore, key: str, limit_bytes: int) -> bytes:
    """The whole object if it has at most `limit_bytes`; `Corrupt` if it is longer, `NotFound`."""
    data = store.get_range(key, 0, limit_bytes + 1)
    if len(data) > limit_bytes:
        raise Corrupt(f"{key} is longer than the {limit_bytes} bytes that it may have")
    return bytes(data)
