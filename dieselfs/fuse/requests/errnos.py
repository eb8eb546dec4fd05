"""The table from our errors to the errno that a program reading the mount gets.

A reader can do nothing about a damaged or missing chunk, and ENOENT would say that the *file* does
not exist, so every failure between the snapshot and the bytes is EIO.
"""

from __future__ import annotations

import errno
import logging
import os
from typing import Final

from chunkstore.errors import ChunkStoreError
from metadata.errors import MetadataError, PathConflict, PathNotFound

log = logging.getLogger(__name__)


class RequestRefused(OSError):
    """The answer to a request is this errno: expected, so not logged.

    Any other `OSError` is a bug or a fault.
    """

    def __init__(self, number: int) -> None:
        super().__init__(number, os.strerror(number))
        self.number = number


_TABLE: Final = (
    (PathNotFound, errno.ENOENT),
    (PathConflict, errno.ENOTDIR),
    ((MetadataError, ChunkStoreError), errno.EIO),
)


def errno_of(error: Exception) -> int:
    """Return the errno that answers a request which failed with `error`."""
    if isinstance(error, RequestRefused):
        return error.number
    return _known_errno(error) or errno.EIO


def logged_errno(kind: str, subject: object, error: Exception) -> int:
    """Return the errno that answers a failed request.

    The log gets one line; a bug of ours is EIO with a traceback.
    """
    if not isinstance(error, RequestRefused):
        log_failure(log, kind, subject, error)
    return errno_of(error)


def log_failure(to: logging.Logger, kind: str, subject: object, error: Exception) -> None:
    """Log a request that failed; a bug of ours with a traceback."""
    number = _known_errno(error)
    if number is None:
        to.error("%s of %s failed unexpectedly: EIO", kind, subject, exc_info=error)
        return
    name = errno.errorcode[number]
    to.error("%s of %s: %s: %s: %s", kind, subject, name, type(error).__name__, error)


def _known_errno(error: Exception) -> int | None:
    return next((number for types, number in _TABLE if isinstance(error, types)), None)
