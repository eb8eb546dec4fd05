"""The thread that writes annotations, at the pace of all requests: less first, then the rest."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from dieselfs.allocation.directory.pod_annotations import Given
from dieselfs.allocation.kubernetes.pod_jobs import is_less, is_news
from dieselfs.allocation.kubernetes.pods import (
    Pod,
    PodApi,
    PodChanged,
    PodGone,
    PodsDenied,
    PodsUnavailable,
)
from dieselfs.allocation.kubernetes.request_pace import BackOff

log = logging.getLogger(__name__)

SMALL: Final = 0.02
"""A change of less is not written."""
_CONFLICT_S: Final = 1.0
"""The time after which a pod is tried again that was changed at the same moment."""


@dataclass(frozen=True, slots=True)
class WantedAnnotations:
    """What a pod is to be told, and what its annotations say now."""

    pod: Pod
    given: Given
    former: Given


class AnnotationWriter:
    """Writes what is wanted, from `start` until `end`."""

    def __init__(
        self, api: PodApi, prefix: str, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._api, self._prefix, self._clock = api, prefix, clock
        self._wanted: dict[str, WantedAnnotations] = {}
        self._written: dict[str, tuple[Mapping[str, str], Given]] = {}
        """The annotations that each pod had, and what was written, until the watch shows it."""
        self._not_before: dict[str, float] = {}
        self._fault = ""
        self._back_off = BackOff(random.random)
        self._changed, self._ending = threading.Condition(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="annotations", daemon=True)

    def start(self) -> None:
        """Begin to write. Returns at once."""
        self._thread.start()

    def end(self) -> None:
        """Write no more after the request that is under way."""
        self._ending.set()
        with self._changed:
            self._changed.notify_all()

    def join(self, timeout_s: float = 5.0) -> None:
        """Wait for the end of the thread."""
        self._thread.join(timeout_s)

    def want(self, wanted: Mapping[str, WantedAnnotations]) -> None:
        """Write these, by the uids of their pods, as far as they are news, and nothing else."""
        with self._changed:
            self._written = {
                uid: seen
                for uid, seen in self._written.items()
                if uid in wanted and wanted[uid].pod.annotations == seen[0]
            }
            self._wanted = {uid: each for uid, each in wanted.items() if self._is_due(uid, each)}
            kept = wanted.keys()
            self._not_before = {uid: at for uid, at in self._not_before.items() if uid in kept}
            self._changed.notify_all()

    @property
    def waiting(self) -> int:
        """The number of pods that are still to be written."""
        with self._changed:
            return len(self._wanted)

    def _is_due(self, uid: str, each: WantedAnnotations) -> bool:
        return is_news(each.given, self._former(uid, each), SMALL)

    def _former(self, uid: str, each: WantedAnnotations) -> Given:
        """Return what the pod was told last; the watch may not show it yet."""
        return self._written[uid][1] if uid in self._written else each.former

    def _run(self) -> None:
        while (each := self._next()) is not None:
            try:
                self._write(each)
            except Exception:
                log.exception("annotations cannot be written")
                self._ending.wait(self._back_off.failed())

    def _next(self) -> WantedAnnotations | None:
        """Return what is written next, as soon as there is something; None at the end."""
        with self._changed:
            while not self._ending.is_set():
                now = self._clock()
                due = {uid: self._not_before.get(uid, now) for uid in self._wanted}
                ready = [uid for uid, at in due.items() if at <= now]
                if ready:
                    return self._wanted[min(ready, key=lambda uid: not self._gets_less(uid))]
                self._changed.wait(min(due.values()) - now if due else None)
        return None

    def _gets_less(self, uid: str) -> bool:
        each = self._wanted[uid]
        return is_less(each.given, self._former(uid, each))

    def _write(self, each: WantedAnnotations) -> None:
        """Write to one pod; what fails is tried again."""
        try:
            self._api.annotate(each.pod, each.given.values(self._prefix))
        except PodChanged as error:
            log.debug("pod %s is annotated later: %s", each.pod.name, error)
            self._put_off(each, _CONFLICT_S)
        except PodGone as error:
            log.debug("%s", error)
            self._put_off(each, BackOff.LONGEST_S)
        except PodsDenied as error:
            self._say(f"{error}; {error.hint}")
            self._ending.wait(BackOff.LONGEST_S)
        except PodsUnavailable as error:
            self._say(str(error))
            self._ending.wait(self._back_off.failed())
        else:
            self._note(each)

    def _note(self, each: WantedAnnotations) -> None:
        """Take note of what was written."""
        if self._fault:
            log.warning("annotations of pods are written again")
        self._fault = ""
        self._back_off.succeeded()
        with self._changed:
            uid, had = each.pod.uid, each.pod.annotations
            self._written[uid] = dict(had), each.given
            # A beat during the request, which could not see its effect yet, wanted the same again.
            left = self._wanted.get(uid)
            if left and left.pod.annotations == had and not self._is_due(uid, left):
                del self._wanted[uid]

    def _put_off(self, each: WantedAnnotations, seconds: float) -> None:
        with self._changed:
            self._not_before[each.pod.uid] = self._clock() + seconds

    def _say(self, what: str) -> None:
        if not self._fault and not self._ending.is_set():
            log.warning("pods keep the annotations that they have: %s", what)
        self._fault = what
