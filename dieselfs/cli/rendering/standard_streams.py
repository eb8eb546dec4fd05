"""The standard streams of a process, which may be closed, as by `>&-`, full, or read by nobody.

The next file that is opened would get the number of a stream that is closed, so what is written to
the stream would go into that file, which may be the index.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final

from dieselfs.errors import LocalFileError

_STREAMS: Final = (("stdin", os.O_WRONLY), ("stdout", os.O_RDONLY), ("stderr", os.O_WRONLY))
"""The streams by their numbers, each with a mode in which it fails as a closed one does.

Lines written to stderr are lost instead.
"""


def open_closed_streams() -> None:
    """Give each standard stream that is closed a file, which no other program inherits."""
    for number, (name, mode) in enumerate(_STREAMS):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, mode | os.O_CLOEXEC)  # it gets the lowest number that is free
        if getattr(sys, name) is None:
            way = "r" if name == "stdin" else "w"
            setattr(sys, name, os.fdopen(number, way, errors="backslashreplace", closefd=False))


def drop_unwritten_output() -> None:
    """Drop what stdout does not take, about which Python would complain at exit."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


@contextmanager
def written_to_stdout() -> Iterator[None]:
    """Raise `LocalFileError` for results that cannot be written, but not for a reader that left."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        raise LocalFileError(f"cannot write to standard output: {error.strerror}") from error


def say(line: str) -> None:
    """Write a line to stderr.

    It is lost if the disk of a log is full, or its reader has gone: that ends no command.
    """
    with suppress(OSError):
        print(line.encode(errors="backslashreplace").decode(), file=sys.stderr, flush=True)
