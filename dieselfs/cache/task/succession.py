"""The thread that makes a process lead its task if no other process does.

It does so also while the process needs nothing from node memory itself. The leader of a task serves
peers and fetches a oneshot share. When a leader ends, as the server before a refresh does, members
that are not read through would not elect another one.
"""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import Final, Protocol

from dieselfs.errors import MasterGone

LOOK_S: Final = 1.0
"""The time between two checks."""


class MasterSeeker(Protocol):
    """The part of a `TaskSession` that is needed here."""

    def has_master(self) -> bool:
        """Return whether there is a master now."""
        ...

    def master(self) -> object:
        """Return the master; elect one if there is none."""
        ...


class Succession:
    """The thread, from its creation until `close`."""

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
            if not self._member.has_master():
                with suppress(MasterGone):
                    self._member.master()
