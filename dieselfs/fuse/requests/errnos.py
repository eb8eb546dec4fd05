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


def logged_errno(kind: str, subject: object, error: Exception) -> int:
    """Return the errno that answers a failed request.

    The log gets one line; a bug of ours is EIO with a traceback.
    """
    if isinstance(error, RequestRefused):
        return error.number
    number = next((number for types, number in _TABLE if isinstance(error, types)), None)
    if number is None:
        log.error("%s of %s failed unexpectedly: EIO", kind, subject, exc_info=error)
        return errno.EIO
    name = errno.errorcode[number]
    log.error("%s of %s: %s: %s: %s", kind, subject, name, type(error).__name__, error)
    return number
