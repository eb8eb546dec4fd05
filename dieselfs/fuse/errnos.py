"""The table from our errors to what a program that reads the mount is told.

A reader can do nothing about a damaged or missing chunk, and ENOENT would say that the *file* does
not exist, so whatever goes wrong between the snapshot and the bytes is EIO.
"""

from __future__ import annotations

import errno
from typing import Final

from chunkstore.errors import ChunkStoreError
from metadata.errors import MetadataError, PathConflict, PathNotFound

_TABLE: Final[tuple[tuple[type[Exception], int], ...]] = (
    (PathNotFound, errno.ENOENT),
    (PathConflict, errno.ENOTDIR),
    (MetadataError, errno.EIO),
    (ChunkStoreError, errno.EIO),
)


def errno_of(error: Exception) -> int | None:
    """The errno for an error that is expected to happen; None for one that is a bug of ours."""
    for kind, number in _TABLE:
        if isinstance(error, kind):
            return number
    return None
