"""A check that a process can still open descriptors, before a step that must not stop half way."""

from __future__ import annotations

import os
from contextlib import ExitStack


def require_descriptors(count: int) -> None:
    """Raise `OSError` (EMFILE, ENFILE) if this process cannot open `count` more descriptors.

    It opens and closes that many: some 2 µs each.
    """
    with ExitStack() as opened:
        for _ in range(count):
            opened.callback(os.close, os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
