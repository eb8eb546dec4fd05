"""A store and an index whose process is killed at a chosen call: before it, in the middle of it, or
when it has taken effect; or which waits there while the test does something to the world.

Calls are counted in each process by itself, and told to the test through shared memory.
"""

from __future__ import annotations

import itertools
import mmap
import os
import signal
import struct
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from chunkstore.stores.object_store import Buffer, ObjectInfo, ObjectStore
from metadata.complete_listing import ChecksMaps
from metadata.kv.evictions import Evictions, evictions_of
from metadata.kv.key_value_store import KeyValueStore, MapFields, MapUpdate
from metadata.kv.lost_writes import LostWrites, lost_writes_of

T = TypeVar("T")
WHEN = ("before", "middle", "after")
PAUSED = "paused"
"""Before the call; not killed."""
_ACKNOWLEDGED, _PUT, _PACKING = range(3)


@dataclass(frozen=True, slots=True)
class KillPoint:
    in_packing_process: bool
    call: int
    """From 1; the first packing process that comes to it is the one."""
    when: str
    """One of `WHEN`, or `PAUSED`."""
    of: str | None = None
    """Only calls of this name are counted."""


class SharedCounts:
    """Of all processes that are forked from the one that makes it."""

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, mmap.PAGESIZE)

    @property
    def acknowledged(self) -> int:
        """Files that the put has told to be committed."""
        return self._get(_ACKNOWLEDGED)

    @acknowledged.setter
    def acknowledged(self, files: int) -> None:
        self._set(_ACKNOWLEDGED, files)

    def calls(self, in_packing_process: bool) -> int:
        """Of the put's own process; of the busiest packing process."""
        return self._get(_PACKING if in_packing_process else _PUT)

    def count(self, in_packing_process: bool, calls: int) -> None:
        at = _PACKING if in_packing_process else _PUT
        self._set(at, max(self._get(at), calls))

    def close(self) -> None:
        self._memory.close()

    def _get(self, at: int) -> int:
        return int(struct.unpack_from("<Q", self._memory, 8 * at)[0])

    def _set(self, at: int, value: int) -> None:
        struct.pack_into("<Q", self._memory, 8 * at, value)


class Trap:
    """Counts the calls of a process, and kills it at one of them. Made in the process that puts."""

    def __init__(
        self,
        counts: SharedCounts,
        point: KillPoint | None,
        pause: Callable[[], None] = lambda: None,
    ) -> None:
        self._counts = counts
        self._point = point
        self._pause = pause
        self._owner = os.getpid()
        self._lock = threading.Lock()
        self._numbers: dict[int, Iterator[int]] = {}

    def pass_by(
        self, name: str, act: Callable[[], T], half: Callable[[], object] = lambda: None
    ) -> T:
        """`act`; `half` does the half of it, where there is one."""
        when = self._when(name)
        if when == PAUSED:
            self._pause()
        elif when in ("before", "middle"):
            if when == "middle":
                half()
            _die()
        result = act()
        if when == "after":
            _die()
        return result

    def _when(self, name: str) -> str | None:
        """What to do at this call, which is counted."""
        point, packing = self._point, os.getpid() != self._owner
        with self._lock:
            number = next(self._numbers.setdefault(os.getpid(), itertools.count(1)))
            self._counts.count(packing, number)
            if point is None or packing != point.in_packing_process:
                return None
            if point.of is not None:
                if name != point.of:
                    return None
                number = next(self._numbers.setdefault(-os.getpid(), itertools.count(1)))
            return point.when if number == point.call else None


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class KilledStore:
    """Implements `ObjectStore`."""

    def __init__(self, inner: ObjectStore, trap: Trap) -> None:
        self._inner, self._trap = inner, trap

    def create(self, key: str, parts: Iterable[Buffer]) -> None:
        gathered = list(parts)
        self._trap.pass_by(
            "create",
            lambda: self._inner.create(key, gathered),
            lambda: self._inner.create(key, _until_death(gathered)),
        )

    def get(self, key: str) -> bytes:
        return self._trap.pass_by("get", lambda: self._inner.get(key))

    def get_range(self, key: str, offset: int, length: int) -> bytes:
        return self._trap.pass_by("get_range", lambda: self._inner.get_range(key, offset, length))

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        return iter(self._trap.pass_by("list", lambda: list(self._inner.list(prefix))))

    def delete(self, key: str) -> None:
        self._trap.pass_by("delete", lambda: self._inner.delete(key))

    def stat(self, key: str) -> ObjectInfo:
        return self._trap.pass_by("stat", lambda: self._inner.stat(key))


def _until_death(parts: Sequence[Buffer]) -> Iterator[Buffer]:
    """Some of the object, and more than a store gathers before it writes."""
    yield bytes(8 << 20)
    yield from parts[:1]
    _die()


class KilledIndex:
    """Implements `KeyValueStore`, as weakly as allowed: each phase of a put is a call, and half a
    phase may be there."""

    def __init__(self, inner: KeyValueStore, trap: Trap) -> None:
        self._inner, self._trap = inner, trap

    def get_many(self, lookups: Sequence[MapFields]) -> list[list[bytes | None]]:
        return self._trap.pass_by("get_many", lambda: self._inner.get_many(lookups))

    def scan(self, key: bytes) -> Iterator[list[tuple[bytes, bytes]]]:
        return iter(self._trap.pass_by("scan", lambda: list(self._inner.scan(key))))

    def put(self, phases: Sequence[Sequence[MapUpdate]]) -> None:
        for phase in phases:
            half = [MapUpdate(key, fields[::2], values[::2]) for key, fields, values in phase[::-2]]
            self._trap.pass_by(
                "put",
                lambda phase=phase: self._inner.put([phase]),  # type: ignore[misc]
                lambda half=half: self._inner.put([half]),  # type: ignore[misc]
            )

    def remove(self, removals: Sequence[MapFields]) -> None:
        self._trap.pass_by("remove", lambda: self._inner.remove(removals))

    def remove_exactly(self, removals: Sequence[MapUpdate]) -> None:
        self._trap.pass_by("remove_exactly", lambda: self._inner.remove_exactly(removals))

    def drop(self, keys: Sequence[bytes]) -> None:
        self._trap.pass_by("drop", lambda: self._inner.drop(keys))

    def check_map(self, key: bytes, is_sound: Callable[[bytes, bytes], bool]) -> None:
        if isinstance(self._inner, ChecksMaps):
            self._inner.check_map(key, is_sound)

    def evictions(self, *, now: bool = False) -> Evictions:
        return evictions_of(self._inner, now=now)

    def lost_writes(self) -> LostWrites:
        return lost_writes_of(self._inner)

    def close(self) -> None:
        self._inner.close()
