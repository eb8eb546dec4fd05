"""The descriptors that this process has open, for tests that none is left.

The collector may close some of other tests meanwhile, so what holds is `open_descriptors() <=
before`.
"""

from __future__ import annotations

import os
from contextlib import suppress


def open_descriptors() -> set[tuple[str, str]]:
    """Return their numbers, each with what it is of."""
    found = set()
    for number in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):  # that of the list itself, or closed meanwhile
            found.add((number, os.readlink(f"/proc/self/fd/{number}")))
    return found
