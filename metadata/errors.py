"""Errors of the metadata layer, cut by what the caller does next.

MetadataError
├── IndexUnavailable     the key-value database did not answer: retry later
│   └── IndexForgot      it lost what it had acknowledged: put recent commits again
├── RecordCorrupt        a record failed its checksum: rebuild the index from the store
│   └── RecordsLost      it promises records that are gone: put all commits again, or the same
├── DatasetNotFound      tell the user
├── PathNotFound         tell the user
├── PathConflict         a file where a directory is asked for, or the other way round: tell the user
├── IndexBehind          the index lacks commits of the store and may not be written: check it, or use a new one
├── SnapshotRefused      the file is not a sound snapshot, or of another dataset: tell the user why
├── SnapshotStale        the dataset has moved on: refresh, or go on knowingly
├── KernelImageRefused   the file is not a sound EROFS image: build it again
├── KernelImageTooLarge  a file of the dataset, or all of them, do not fit an image: mount without one
└── KernelImageUnwritable  the folder takes no image: tell the user why
"""

from __future__ import annotations


class MetadataError(Exception):
    """Root of everything that `metadata` raises on purpose."""


class IndexUnavailable(MetadataError):
    """The key-value database did not answer. Retrying may help."""


class IndexForgot(IndexUnavailable):
    """A server of the index came back, or was replaced, without records that it had acknowledged."""


class RecordCorrupt(MetadataError):
    """A record of the index failed its checksum."""


class RecordsLost(RecordCorrupt):
    """What the index says of its totals and of what it has applied does not go together: it has lost records."""


class DatasetNotFound(MetadataError):
    """No dataset of that name."""


class PathNotFound(MetadataError):
    """No file or directory of that path."""


class PathConflict(MetadataError):
    """The path is a file where a directory is needed, or a directory where a file is."""


class IndexBehind(MetadataError):
    """The store holds commits that the index does not."""


class SnapshotRefused(MetadataError):
    """The file is damaged, foreign, or a snapshot of another dataset."""


class SnapshotStale(MetadataError):
    """The snapshot is older than the dataset."""


class KernelImageRefused(MetadataError):
    """The file is not an EROFS image as docs/kernel-image.md describes it, or it is damaged."""


class KernelImageTooLarge(MetadataError):
    """The dataset exceeds what an EROFS image can address."""


class KernelImageUnwritable(MetadataError):
    """The folder takes no image: it is full, read-only, or denied."""
