"""A warm-up in a thread of its own, in the hands of its caller."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable

from chunkstore.errors import ChunkStoreError
from dieselfs.cache.warmup.report import WarmUpReport
from dieselfs.cache.warmup.warm_up import WarmUp
from dieselfs.errors import DieselFSError, UsageError

log = logging.getLogger(__name__)


class WarmUpHandle:
    """A warm-up that runs. Thread-safe. It belongs to its process: a forked child has none."""

    def __init__(self, name: str, work: WarmUp, ended: Callable[[], None] = lambda: None) -> None:
        """Start the warm-up in a daemon thread. `ended` is called at its end, in that thread."""
        self._name, self._work, self._ended = name, work, ended
        self._pid = os.getpid()
        self._over = threading.Event()
        self._error: BaseException | None = None
        threading.Thread(target=self._run, name="prefetch", daemon=True).start()

    def progress(self) -> WarmUpReport:
        """Return the counts so far. Takes about 10 µs."""
        return self._work.report()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Return whether the warm-up has ended; wait for it, `timeout_s` at most."""
        if os.getpid() != self._pid:
            raise UsageError(
                f"the prefetch of {self._name} belongs to the parent process",
                "wait for it there, or prefetch again in this process",
            )
        return self._over.wait(timeout_s)

    def result(self, timeout_s: float | None = None) -> WarmUpReport:
        """Wait for the end and return the counts, with a reason for each chunk that is missing.

        Raises `TimeoutError` if the warm-up still runs after `timeout_s`, and an error that nobody
        expected, such as one of the program. A store or a tier that does not answer is a reason.
        """
        if not self.wait(timeout_s):
            raise TimeoutError(f"the prefetch of {self._name} still runs after {timeout_s} s")
        if self._error is not None:
            raise self._error
        return self.progress()

    def cancel(self) -> None:
        """Start no further fetch. Return at once; those under way end by themselves."""
        self._work.stop()

    def __repr__(self) -> str:
        now = self.progress()
        done = now.chunks - now.left
        return f"<prefetch of {self._name}: {now.state}, {done:,} of {now.chunks:,} chunks>"

    def _run(self) -> None:
        try:
            self._work.run(lambda chunks, size_bytes: None)
        except (ChunkStoreError, DieselFSError) as error:
            log.warning("the prefetch of %s has ended: %s", self._name, error)
        except BaseException as error:
            log.exception("the prefetch of %s has failed", self._name)
            self._error = error
        finally:
            try:
                self._ended()
            except Exception:
                log.exception("cannot end the prefetch of %s", self._name)
            self._over.set()
