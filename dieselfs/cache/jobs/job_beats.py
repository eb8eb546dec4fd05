"""The thread that publishes and watches job records: once in 2 s, and no reader waits for it."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, Protocol

from chunkstore.ssd.tier_policies import TierPolicies
from dieselfs.cache.jobs.job_registry import JobRegistry
from dieselfs.cache.jobs.job_watcher import JobWatcher
from dieselfs.cache.jobs.registries import job_registry
from dieselfs.errors import RegistryUnavailable
from metadata.errors import IndexUnavailable

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
    """The thread, from `start` until `close`. It alone uses the registry."""

    def __init__(
        self,
        make_registry: Callable[[], JobRegistry],
        parts: Sequence[Beat],
        beat_s: float = BEAT_S,
    ) -> None:
        """Create it without a thread. `make_registry` may raise `IndexUnavailable`."""
        self._make_registry, self._parts, self._beat_s = make_registry, parts, beat_s
        self._is_out = self._has_failed = False
        self._lock, self._ending = threading.Lock(), threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin, unless it has begun or is closed. Returns at once, from any thread."""
        with self._lock:
            if self._thread is None and not self._ending.is_set():
                self._pid = os.getpid()
                self._thread = threading.Thread(target=self._run, name="jobs", daemon=True)
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
            log.warning("job records are neither published nor seen: %s", error)
            return
        while not self._ending.is_set():
            self._beat(registry)
            self._ending.wait(self._beat_s)
        for part in self._parts:
            part.end(registry)
        registry.close()

    def _beat(self, registry: JobRegistry) -> None:
        """Do all that is due; a registry that is away is logged once, and asked again."""
        try:
            for part in self._parts:
                part.beat(registry)
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


def watch_jobs(index_url: str, policies: TierPolicies) -> JobBeats:
    """Tell the tier's cache policy what all readers publish, as soon as the tier has a policy.

    The caller closes the result. Without a policy there is no thread and no request.
    """
    watcher = JobWatcher(policies.publish, lambda: policies.runner is not None)
    beats = JobBeats(partial(job_registry, index_url), [watcher])
    policies.when_policy(beats.start)
    return beats
