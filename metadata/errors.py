"""Errors of the metadata layer, divided by what the caller does next.

MetadataError
├── IndexUnavailable       the key-value database did not answer: retry later
│   ├── IndexDenied        it refused the user or the password: tell the user
│   └── IndexForgot        it lost what it had acknowledged: put recent commits again
├── IndexEvicts            its server may evict records, so it is not written: tell the user
├── IndexDamaged           its database file is unsound: move it away, and rebuild the index
├── RecordCorrupt          a record failed its checksum: rebuild the index from the store
│   ├── MapOfWrongType     a map is something else in the database: rebuild, which replaces it
│   └── RecordsLost        records are missing: put all commits again, or rebuild
├── DatasetNotFound        tell the user
├── PathNotFound           tell the user
├── PathConflict           a file where a directory is needed, or vice versa: tell the user
│   └── PathIsLink         a symbolic link where a file is needed: ask for what it leads to
├── IndexBehind            the index lacks commits of the store and may not be written: check it,
│                          or use a new one
├── SnapshotRefused        the file is not a sound snapshot, or of another dataset: tell the user
├── SnapshotClosed         the caller closed the snapshot: open it again
├── SnapshotStale          the dataset is newer: refresh, or continue deliberately
├── KernelImageTooLarge    a file of the dataset, or all of them, do not fit an image: mount
│                          without one
└── KernelImageUnwritable  the folder takes no image: tell the user why
"""

from __future__ import annotations

from pathlib import Path


class MetadataError(Exception):
    """The root of all errors that `metadata` raises deliberately."""


class IndexUnavailable(MetadataError):
    """The key-value database did not answer. A retry may succeed."""


class IndexDenied(IndexUnavailable):
    """The key-value database refused the user or the password. A retry fails too."""


class IndexForgot(IndexUnavailable):
    """A server of the index came back or was replaced without records that it had acknowledged."""


class IndexEvicts(MetadataError):
    """The server of an index may evict records to make room for others."""


class IndexDamaged(MetadataError):
    """The database file of an index is unsound as a whole."""

    def __init__(self, what: str, folder: Path | None = None) -> None:
        super().__init__(what)
        self.folder = folder
        """The folder of the database, where it is known."""


class RecordCorrupt(MetadataError):
    """A record of the index failed its checksum."""


class MapOfWrongType(RecordCorrupt):
    """The database has something at the key of a map that is no map: another program wrote it."""

    def __init__(self, what: str, key: bytes = b"") -> None:
        super().__init__(what)
        self.key = key
        """The key in the database; a part of a map may have one of its own."""


class RecordsLost(RecordCorrupt):
    """The index has lost records: its totals and its applied state contradict each other."""


class DatasetNotFound(MetadataError):
    """No dataset has that name."""


class PathNotFound(MetadataError):
    """No file or directory has that path."""


class PathConflict(MetadataError):
    """The path is a file where a directory is needed, or a directory where a file is needed."""


class PathIsLink(PathConflict):
    """The path is a symbolic link where a file is needed."""


class IndexBehind(MetadataError):
    """The store holds commits that the index lacks."""


class SnapshotRefused(MetadataError):
    """The file is damaged, foreign, or a snapshot of another dataset."""


class SnapshotClosed(MetadataError, AttributeError):
    """The snapshot was closed before this use of it."""


class SnapshotStale(MetadataError):
    """The snapshot is older than the dataset."""


class KernelImageTooLarge(MetadataError):
    """The dataset exceeds what an EROFS image can address."""


class KernelImageUnwritable(MetadataError):
    """The folder takes no image: it is full, read-only, or denied."""
