"""The pods of a namespace as they are now: listed once, then watched, by a thread of its own."""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Iterable, Mapping

from dieselfs.allocation.kubernetes.pods import (
    Changed,
    Pod,
    PodApi,
    PodsDenied,
    PodsUnavailable,
    VersionExpired,
)
from dieselfs.allocation.kubernetes.request_pace import BackOff

log = logging.getLogger(__name__)


class WatchedPods:
    """The pods, from `start` until `end`; they stay as they are while no server answers."""

    def __init__(self, api: PodApi) -> None:
        self._api = api
        self._lock = threading.Lock()
        self._pods: dict[str, Pod] = {}
        self._version: str | None = None
        """The version from which to watch on; None: list first."""
        self._is_known = False
        self._is_listed_only = False
        """True if no watch has answered since the pods were listed."""
        self._fault = ""
        """The error that the log has, while it lasts."""
        self._back_off = BackOff(random.random)
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="pods", daemon=True)

    def start(self) -> None:
        """Begin to watch. Returns at once."""
        self._thread.start()

    def end(self) -> None:
        """Watch no longer. A watch that is under way ends when the `PodApi` is closed."""
        self._ending.set()

    def join(self, timeout_s: float = 5.0) -> None:
        """Wait for the end of the thread."""
        self._thread.join(timeout_s)

    def pods(self) -> Mapping[str, Pod] | None:
        """Return the pods by their uids; None if they have not been listed yet."""
        with self._lock:
            return dict(self._pods) if self._is_known else None

    def _run(self) -> None:
        while not self._ending.is_set():
            try:
                self._follow()
            except VersionExpired as error:
                log.info("the pods are listed again: %s", error)
                if self._is_listed_only:  # so the next watch may expire at once, too
                    self._ending.wait(self._back_off.failed())
                self._version = None
            except (PodsUnavailable, PodsDenied) as error:
                if isinstance(error, PodsDenied):
                    self._version = None  # an account that may not watch sees pods by lists
                if not self._ending.is_set():
                    self._say(error)
                    self._ending.wait(self._back_off.failed())
            except Exception:
                log.exception("pods cannot be watched")
                self._ending.wait(self._back_off.failed())

    def _follow(self) -> None:
        """List if that is due, then take what a watch says until it ends."""
        if self._version is None:
            found = self._api.pods()
            with self._lock:
                self._pods = {pod.uid: pod for pod in found.pods}
                self._is_known, self._version = True, found.version
            self._is_listed_only = True
        for change in self._api.watch(self._version):
            self._answered()
            self._take((change,))
            self._version = change.version or self._version
        self._answered()

    def _take(self, changes: Iterable[Changed]) -> None:
        with self._lock:
            for change in changes:
                if change.pod is not None and change.is_gone:
                    self._pods.pop(change.pod.uid, None)
                elif change.pod is not None:
                    self._pods[change.pod.uid] = change.pod

    def _answered(self) -> None:
        if self._fault:
            log.warning("pods are seen again")
        self._fault, self._is_listed_only = "", False
        self._back_off.succeeded()

    def _say(self, error: PodsUnavailable | PodsDenied) -> None:
        said = f"{error}; {error.hint}" if error.hint else str(error)
        if not self._fault:
            log.warning("pods count as they were seen last: %s", said)
        self._fault = said
