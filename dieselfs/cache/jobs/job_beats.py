"""The thread that publishes and watches job records: once in 2 s, and no reader waits for it."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from chunkstore.ssd.policies.jobs import JobSpecification
from dieselfs.cache.jobs.job_registry import JobRegistry
from dieselfs.cache.jobs.job_watcher import JobWatcher
from dieselfs.cache.jobs.registries import job_registry
from dieselfs.errors import RegistryUnavailable

log = logging.getLogger(__name__)

BEAT_S: Final = 2.0
CLOSE_S: Final = 1.0


class Beat(Protocol):
    """Something that is done at each beat: `JobPublisher`, `JobWatcher`."""

    def beat(self, registry: JobRegistry) -> None:
        """Do it. Raises `RegistryUnavailable`."""
        ...

    def end(self, registry: JobRegistry) -> None:
        """Do what is due at the end. Never raises."""
        ...


class JobBeats:
    """The thread, from its creation until `close`. It alone uses the registry."""

    def __init__(
        self, registry: JobRegistry, parts: Sequence[Beat], beat_s: float = BEAT_S
    ) -> None:
        self._registry, self._parts, self._beat_s = registry, parts, beat_s
        self._is_out = self._has_failed = False
        self._ending = threading.Event()
        self._pid = os.getpid()
        self._thread = threading.Thread(target=self._run, name="jobs", daemon=True)
        self._thread.start()

    def close(self, timeout_s: float = CLOSE_S) -> None:
        """Withdraw what was published, if time permits; otherwise its lease ends it."""
        if os.getpid() == self._pid:  # a forked child has no thread, and the record is its parent's
            self._ending.set()
            self._thread.join(timeout_s)

    def _run(self) -> None:
        while not self._ending.is_set():
            self.beat()
            self._ending.wait(self._beat_s)
        for part in self._parts:
            part.end(self._registry)
        self._registry.close()

    def beat(self) -> None:
        """Do all that is due; a registry that is away is logged once, and asked again."""
        try:
            for part in self._parts:
                part.beat(self._registry)
        except RegistryUnavailable as error:
            if not self._is_out:
                log.warning("job records are neither published nor seen now: %s", error)
            self._is_out = True
            return
        except Exception:
            if not self._has_failed:
                log.exception("job records cannot be published or seen")
            self._has_failed = True
            return
        if self._is_out:
            log.warning("job records are published and seen again")
        self._is_out = False


def watch_jobs(index_url: str, publish: Callable[[JobSpecification], object]) -> JobBeats:
    """Hand what all readers publish to a policy runner's `publish`, until the result is closed.

    Raises `IndexUnavailable` if the URL is no address of a Redis. Costs no request here.
    """
    return JobBeats(job_registry(index_url), [JobWatcher(publish)])
