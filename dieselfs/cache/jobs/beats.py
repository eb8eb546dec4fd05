"""The thread that publishes and watches records of a registry, for which no reader waits."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Sequence
from typing import Final, Generic, Protocol, TypeVar

from chunkstore.after_fork import renew_now_and_after_fork
from dieselfs.errors import RegistryUnavailable
from metadata.errors import IndexUnavailable

log = logging.getLogger(__name__)

CLOSE_S: Final = 1.0


class Closing(Protocol):
    """A registry of any kind: it can be closed."""

    def close(self) -> None:
        """Close connections and files."""
        ...


Registry = TypeVar("Registry", bound=Closing)
Registry_contra = TypeVar("Registry_contra", bound=Closing, contravariant=True)


class Beat(Protocol[Registry_contra]):
    """Something that is done at each beat."""

    def beat(self, registry: Registry_contra) -> None:
        """Do it. Raises `RegistryUnavailable`."""
        ...

    def end(self, registry: Registry_contra) -> None:
        """Do what is due at the end. Never raises."""
        ...


class Beats(Generic[Registry]):
    """The thread, from `start` until `close`. It alone uses the registry."""

    def __init__(
        self,
        make_registry: Callable[[], Registry],
        parts: Sequence[Beat[Registry]],
        beat_s: float | Callable[[], float],
        *,
        name: str,
        what: str,
    ) -> None:
        """Create it without a thread. `make_registry` may raise `IndexUnavailable`.

        `beat_s` is the time between two beats, or returns it. `name` is the thread's, and `what`
        names the records in the log.
        """
        self._make_registry, self._parts, self._beat_s = make_registry, parts, beat_s
        self._name, self._what = name, what
        self._is_out = self._has_failed = False
        self._lock: threading.Lock
        self._ending = threading.Event()
        self._thread: threading.Thread | None = None
        renew_now_and_after_fork(self)

    def renew(self) -> None:
        """Have locks in a forked child that no thread of its parent holds."""
        ending = threading.Event()
        if self._ending.is_set():
            ending.set()
        self._lock, self._ending = threading.Lock(), ending

    def start(self) -> None:
        """Begin, unless it has begun or is closed. Returns at once, from any thread."""
        with self._lock:
            if self._thread is None and not self._ending.is_set():
                self._pid = os.getpid()
                self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                self._thread.start()

    def close(self, timeout_s: float = CLOSE_S) -> None:
        """Withdraw what was published, if time permits; otherwise its lease ends it."""
        with self._lock:
            self._ending.set()
            thread = self._thread
        # A forked child has no such thread, and the record is its parent's.
        if thread is not None and os.getpid() == self._pid:
            thread.join(timeout_s)

    def _run(self) -> None:
        try:
            registry = self._make_registry()
        except IndexUnavailable as error:
            log.warning("%s are neither published nor seen: %s", self._what, error)
            return
        while not self._ending.is_set():
            self._beat(registry)
            self._ending.wait(self._beat_s() if callable(self._beat_s) else self._beat_s)
        for part in self._parts:
            part.end(registry)
        registry.close()

    def _beat(self, registry: Registry) -> None:
        """Do all that is due; a registry that is away is logged once, and asked again."""
        try:
            for part in self._parts:
                part.beat(registry)
        except RegistryUnavailable as error:
            if not self._is_out:
                log.warning("%s are neither published nor seen now: %s", self._what, error)
            self._is_out = True
            return
        except Exception:
            if not self._has_failed:
                log.exception("%s cannot be published or seen", self._what)
            self._has_failed = True
            return
        if self._is_out:
            log.warning("%s are published and seen again", self._what)
        self._is_out = False
