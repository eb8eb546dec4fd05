"""Errors of the chunk store, one class for each reaction of the caller.

ChunkStoreError
├── Unavailable      the store did not answer: retry later, or use another tier
│   └── NoStoreYet   the first write creates the store: take it for an empty one
├── Untrusted        the store contradicts itself: conclude nothing from its answers, tell the user
├── Corrupt          bytes arrived that are not what was stored: ask another copy
├── NotFound         no such object: report it to the user
├── AlreadyExists    a create-only put lost: take the next name
├── StoreFull        no space left, nothing was stored: report it to the user
├── Denied           the store refused the credentials or the file mode: report it to the user
├── BadSource        a file to pack vanished, changed or is unreadable: report it to the user
└── InvalidPath      a path that no dataset may hold: report it to the user (also a ValueError)
"""

from __future__ import annotations


class ChunkStoreError(Exception):
    """Root of all errors that `chunkstore` defines."""


class Unavailable(ChunkStoreError):
    """The store did not answer, or answered that it cannot serve now. A retry may help."""


class NoStoreYet(Unavailable):
    """The store does not exist; the first object creates it."""


class Untrusted(ChunkStoreError):
    """The store contradicts itself or its protocol: an endless listing, a put that is not there."""


class Corrupt(ChunkStoreError):
    """Bytes failed a checksum, or are not the object that their key names."""


class NotFound(ChunkStoreError):
    """The store has no object with that key."""


class AlreadyExists(ChunkStoreError):
    """The key of a create-only put is taken."""


class StoreFull(ChunkStoreError):
    """No space (or quota) is left in the store. The object was not created."""


class Denied(ChunkStoreError):
    """The store refuses this user."""


class InvalidPath(ChunkStoreError, ValueError):
    """A path that breaks the rules of `chunkstore.paths`."""


class BadSource(ChunkStoreError):
    """A file to pack vanished, changed while it was read, or cannot be read."""
