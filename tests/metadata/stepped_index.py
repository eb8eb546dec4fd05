"""A key-value store taken apart: one field of one map at a time, with a chance in between for
others, or for the end."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator, Sequence

from metadata.kv.key_value_store import KeyValueStore, MapFields, MapUpdate

Step = Callable[[], None]


class Stopped(BaseException):
    """The process ends here. Not an `Exception`: nothing may handle it."""


class Piecewise:
    """Implements `KeyValueStore` as weakly as the contract allows: a put is not one point in time,
    and its fields come in any order within a phase. `step` is called before everything that changes
    or reads anything."""

    def __init__(self, inner: KeyValueStore, step: Step, draw: random.Random | None = None) -> None:
        self._inner = inner
        self._step = step
        self._draw = draw or random.Random(0)

    @classmethod
    def failing_after(cls, inner: KeyValueStore, calls: int, seed: int = 0) -> Piecewise:
        left = [calls]

        def step() -> None:
            if not left[0]:
                raise Stopped
            left[0] -= 1

        return cls(inner, step, random.Random(seed))

    def stopped(self, work: Callable[[], object]) -> bool:
        """Whether `work` came to the point where everything stops."""
        try:
            work()
        except Stopped:
            return True
        return False

    def get_many(self, lookups: Sequence[MapFields]) -> list[list[bytes | None]]:
        found = []
        for lookup in lookups:
            self._step()
            found += self._inner.get_many([lookup])
        return found

    def scan(self, key: bytes) -> Iterator[list[tuple[bytes, bytes]]]:
        self._step()
        yield from self._inner.scan(key)

    def put(self, phases: Sequence[Sequence[MapUpdate]]) -> None:
        for phase in phases:
            pieces = [
                MapUpdate(key, [field], [value])
                for key, fields, values in phase
                for field, value in zip(fields, values, strict=True)
            ]
            self._draw.shuffle(pieces)
            for piece in pieces:
                self._step()
                self._inner.put([[piece]])

    def remove(self, removals: Sequence[MapFields]) -> None:
        for key, fields in removals:
            for field in fields:
                self._step()
                self._inner.remove([MapFields(key, [field])])

    def remove_exactly(self, removals: Sequence[MapUpdate]) -> None:
        for key, fields, values in removals:
            for field, value in zip(fields, values, strict=True):
                self._step()
                self._inner.remove_exactly([MapUpdate(key, [field], [value])])

    def drop(self, keys: Sequence[bytes]) -> None:
        for key in keys:
            self._step()
            self._inner.drop([key])

    def close(self) -> None:
        """The inner store belongs to the test."""


class Turns:
    """Threads of which one runs at a time, chosen anew at every step."""

    def __init__(self, draw: random.Random) -> None:
        self._draw = draw
        self._gates: list[threading.Semaphore] = []
        self._arrived = threading.Semaphore(0)
        self._threads: list[threading.Thread] = []
        self._failures: list[BaseException] = []
        self._ended: set[int] = set()

    def add(self, work: Callable[[Step], None]) -> None:
        number = len(self._gates)
        gate = threading.Semaphore(0)

        def step() -> None:
            self._arrived.release()
            gate.acquire()

        def run() -> None:
            gate.acquire()
            try:
                work(step)
            except BaseException as error:
                self._failures.append(error)
            self._ended.add(number)
            self._arrived.release()

        self._gates.append(gate)
        self._threads.append(threading.Thread(target=run))

    def run(self) -> None:
        for thread in self._threads:
            thread.start()
        while running := [n for n in range(len(self._gates)) if n not in self._ended]:
            self._gates[self._draw.choice(running)].release()
            self._arrived.acquire()
        for thread in self._threads:
            thread.join()
        if self._failures:
            raise self._failures[0]
