"""The chunks that were found damaged or missing a moment ago."""

from __future__ import annotations

import logging
import time
from typing import Final

log = logging.getLogger(__name__)

DAMAGE_KNOWN_S: Final = 5.0
"""The time for which a damaged or missing chunk is not fetched again.

Otherwise each of its files would fetch the whole chunk.
"""


class DamagedBlocks:
    """The errors of damaged blocks, for a while. One thread at a time may use it."""

    def __init__(self) -> None:
        self._errors: dict[str, tuple[float, Exception]] = {}
        """For each damaged block, the end of the time for which that counts, and its error."""

    def note(self, name: str, error: Exception) -> None:
        """Note that the fetch of a block found damage."""
        now = time.monotonic()
        self._errors = {key: kept for key, kept in self._errors.items() if kept[0] > now}
        self._errors[name] = now + DAMAGE_KNOWN_S, error
        log.error("chunk %s is damaged, so its intact files are read one by one: %s", name, error)

    def check(self, name: str) -> None:
        """Raise the error of a block that is known to be damaged."""
        known_until, error = self._errors.get(name, (0.0, None))
        if error is not None:
            if time.monotonic() < known_until:
                raise type(error)(*error.args)  # the traceback of the kept one would grow
            del self._errors[name]
