"""Errors of the chunk store, cut by what the caller does next.

ChunkStoreError
├── Unavailable      the store did not answer: retry later, or use another tier
├── Corrupt          bytes arrived that are not what was stored: ask another copy
├── NotFound         no such object: tell the user
├── AlreadyExists    a create-only put lost: take the next name
├── StoreFull        no space left: tell the user, nothing was stored
├── Denied           the store refused the credentials or the file mode: tell the user
├── BadSource        a file that is being packed vanished, changed or cannot be read: tell the user
└── InvalidPath      a path that no dataset may hold: tell the user (also a ValueError)
"""

from __future__ import annotations


class ChunkStoreError(Exception):
    """Root of everything that `chunkstore` raises on purpose."""


class Unavailable(ChunkStoreError):
    """The store did not answer, or answered that it can't now. Retrying may help."""


class Corrupt(ChunkStoreError):
    """Bytes failed a checksum, or are not the object that their key names."""


class NotFound(ChunkStoreError):
    """There is no object of that key."""


class AlreadyExists(ChunkStoreError):
    """The key of a create-only put is taken."""


class StoreFull(ChunkStoreError):
    """No space (or quota) is left in the store. The object was not created."""


class Denied(ChunkStoreError):
    """The store refuses this user."""


class InvalidPath(ChunkStoreError, ValueError):
    """A path outside the law of `chunkstore.paths`."""


class BadSource(ChunkStoreError):
    """A file that is being packed vanished, changed meanwhile, or cannot be read."""
