"""Paths in a dataset, as callers write them and as the metadata keeps them."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from dieselfs.errors import UsageError

DatasetPath = str | bytes
"""A path in the dataset; a str is encoded by `os.fsencode`, so that it can spell any file name."""
Inodes = Sequence[int] | npt.NDArray[np.integer]
"""Numbers of files in the loaded snapshot."""
NAMES_ARE_UTF8: Final = sys.getfilesystemencoding() == "utf-8"
ENCODING: Final = sys.getfilesystemencoding()
ERRORS: Final = sys.getfilesystemencodeerrors()


def encoded(path: DatasetPath) -> bytes:
    """Return the bytes of a path, without slashes at its ends."""
    # This is os.fsencode, but faster.
    try:
        data = path if isinstance(path, bytes) else path.encode(ENCODING, ERRORS)
    except AttributeError:
        raise UsageError(
            f"a path in a dataset is str or bytes, not {type(path).__name__}", "write str(path)"
        ) from None
    return data.strip(b"/")


def decoded(path: bytes) -> str:
    """Return a path as text."""
    return os.fsdecode(path)


def as_path(file: DatasetPath | int) -> DatasetPath:
    """Return a file that is given by its path; raise `UsageError` for an inode."""
    if not isinstance(file, str | bytes):
        raise UsageError(
            "only a snapshot can be read by inodes",
            "call load_meta first, or give paths alone",
        )
    return file
