"""A store and an index whose every call is a step, at which something happens: another writer
commits, or the process ends."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable

from chunkstore.stores.object_store import ObjectStore
from metadata.kv.key_value_store import KeyValueStore
from tests.chunkstore.packed import StoreWrapper
from tests.metadata.stepped_index import Piecewise, Stopped

Step = Callable[[], None]


class SteppedStore(StoreWrapper):
    """Takes a step before each call, and after each that changes something."""

    def __init__(self, inner: ObjectStore, step: Step) -> None:
        super().__init__(inner)
        self._step = step

    def before(self, call: str, key: str) -> None:
        self._step()

    def after(self, call: str, key: str) -> None:
        if call in ("create", "delete"):
            self._step()


class EndOfProcess:
    """Raises `Stopped` at the n-th step and at all later ones, in whichever thread."""

    def __init__(self, steps: int | None = None) -> None:
        self._left = steps
        self._lock = threading.Lock()
        self.taken = 0

    def __call__(self) -> None:
        with self._lock:
            self.taken += 1
            if self._left is not None:
                if not self._left:
                    raise Stopped
                self._left -= 1


class Interference:
    """Calls `change` soon, then again after at most `pause` steps, `most` times; steps of the
    change itself are none."""

    def __init__(self, draw: random.Random, pause: int, most: int, change: Step) -> None:
        self._draw = draw
        self._pause = pause
        self._most = most
        self._left = draw.randint(1, 15)
        self._change = change
        self._lock = threading.RLock()
        self._busy = False
        self.changes = 0

    def __call__(self) -> None:
        with self._lock:
            if self._busy or self.changes >= self._most:
                return
            self._left -= 1
            if self._left:
                return
            self._left = self._draw.randint(1, self._pause)
            self._busy = True
            try:
                self._change()
                self.changes += 1
            finally:
                self._busy = False


def stepped(store: ObjectStore, index: KeyValueStore, step: Step) -> tuple[SteppedStore, Piecewise]:
    return SteppedStore(store, step), Piecewise(index, step)
