"""The snapshot that a mount shows, for readers that know its files by inode.

Its file may be another user's, or in another mount namespace: then it is copied through the mount,
into memory that forked workers share.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Final

from dieselfs.errors import Conflict, UsageError
from dieselfs.prefetch.announcement import CONTROL_FOLDER, SNAPSHOT_DOCUMENT, mount_document
from metadata.snapshot import Snapshot

_COPIED_AT_ONCE: Final = 1 << 20


def mounted_snapshot(root: Path) -> Snapshot:
    """Return the snapshot that a mount shows now; `UsageError` if it cannot be opened."""
    file = mount_document(root).get("snapshot_file")
    if file is None:
        raise UsageError(
            f"mount {root} does not name the snapshot that it shows", "pass it: snapshot=…"
        )
    try:
        return Snapshot.open(file)
    except OSError as error:
        return _copied(root, error)


def check_shown(root: Path, snapshot_id: str) -> None:
    """Raise `Conflict` if a mount shows another snapshot than this one, after a refresh."""
    shown = mount_document(root).get("snapshot", snapshot_id)
    if shown != snapshot_id:
        raise _moved(root, shown, snapshot_id)


class CopiedSnapshot(Snapshot):
    """A copy in memory. Its file ends with the mount's server, and so would a mapping of it.

    Its pickle copies it again, for workers that are spawned.
    """

    root: Path

    def __reduce__(self) -> tuple[object, ...]:
        return _copied_again, (self.root, self.id)


def _copied(root: Path, why: OSError) -> Snapshot:
    """Return a copy through a mount; `why` says why the snapshot's own file cannot be opened."""
    shown = root / CONTROL_FOLDER / SNAPSHOT_DOCUMENT
    memory = os.memfd_create("dieselfs-snapshot", os.MFD_CLOEXEC)
    try:
        with open(shown, "rb") as source, open(memory, "wb", closefd=False) as target:
            shutil.copyfileobj(source, target, _COPIED_AT_ONCE)
        copy = CopiedSnapshot.open(f"/proc/self/fd/{memory}")
    except OSError as error:
        raise UsageError(
            f"cannot open the snapshot of the mount {root}: {why}; nor through the mount: {error}",
            "pass it: snapshot=…",
        ) from None
    finally:
        os.close(memory)
    copy.root, copy.path = root, shown
    return copy


def _copied_again(root: Path, snapshot_id: str) -> Snapshot:
    """Return the snapshot of this id; `Conflict` if the mount shows another one meanwhile."""
    found = mounted_snapshot(root)
    if found.id != snapshot_id:
        raise _moved(root, found.id, snapshot_id)
    return found


def _moved(root: Path, shown: str, snapshot_id: str) -> Conflict:
    return Conflict(
        f"the mount {root} shows snapshot {shown} now, and the samples are of {snapshot_id}",
        "create the dataset and its sampler again",
    )
