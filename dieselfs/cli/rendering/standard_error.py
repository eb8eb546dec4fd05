"""Lines on stderr: notes, progress and errors."""

from __future__ import annotations

import sys
from contextlib import suppress


def say(line: str) -> None:
    """Write a line to stderr.

    It is lost if the disk of a log is full, or its reader has gone: that ends no command.
    """
    with suppress(OSError):
        print(line.encode(errors="backslashreplace").decode(), file=sys.stderr, flush=True)
