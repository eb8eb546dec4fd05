"""The thread of a process that leads its task if nobody does, also while it needs nothing from node memory itself.

Peers are served, and a oneshot share is fetched, by the task's leader. When a leader ends, as the server before a refresh does, members
that nobody reads through would not ask for another one.
"""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import Final, Protocol

from dieselfs.errors import MasterGone

LOOK_S: Final = 1.0


class MasterSeeker(Protocol):
    """What is needed of a `Membership`."""

    def current(self) -> object | None: ...

    def master(self) -> object: ...


class Succession:
    """Begins at once, ends with `close`."""

    def __init__(self, member: MasterSeeker, look_s: float = LOOK_S) -> None:
        self._member, self._look_s = member, look_s
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="succession", daemon=True)
        self._thread.start()

    def close(self, timeout_s: float) -> None:
        """Begin no more elections; one that is under way ends with the membership."""
        self._closed.set()
        self._thread.join(timeout_s)

    def _run(self) -> None:
        while not self._closed.wait(self._look_s):
            if self._member.current() is None:
                with suppress(MasterGone):
                    self._member.master()
