"""A mount without a daemon: EROFS over a blob that lies on the SSD (`dieselfs.cache.ssd.blob`).

    image file ──▶ EROFS at the mountpoint ──▶ blob, a local file
                       └─ .dieselfs: a small tmpfs with `dataset.json`

No process serves it, and nothing is counted. Its control directory says what is mounted, so that
`dlcmd mounts` lists it and a sampler finds the snapshot. It takes no plans, and names no node
memory, so that programs do not try.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from dieselfs.errors import MountError
from dieselfs.fuse.control.control_documents import encoded, snapshot_facts, timestamp
from dieselfs.fuse.mounts import erofs_mounts
from dieselfs.fuse.mounts.control_names import DATASET_NAME
from dieselfs.fuse.mounts.front_choice import (
    Front,
    WantedCache,
    WantedFront,
    choose,
    probe,
)
from dieselfs.fuse.mounts.mount_syscalls import ATTR_NODEV, ATTR_NOSUID, new_mount
from dieselfs.fuse.mounts.mount_table import LOCAL_KIND
from dieselfs.fuse.requests.attributes import Owner
from metadata.blob_layout import DEVICE_BLOCKS, BlobLayout
from metadata.errors import KernelImageTooLarge, KernelImageUnwritable, SnapshotRefused
from metadata.kernel_image_file import kernel_image
from metadata.kernel_image_inodes import ImageOwner
from metadata.snapshot import Snapshot

_CONTROL_BYTES: Final = 256 << 10


@dataclass(frozen=True, slots=True)
class LocalMount:
    """The place and the options of a local mount."""

    mountpoint: Path
    """The resolved mountpoint."""
    owner: Owner
    """The owner of everything in the mount."""
    private: bool = False
    """Only the owner gets past the root directory."""
    front: WantedFront = "auto"
    blob_cache: WantedCache = "auto"
    replace: bool = False
    """Replace the local mount that is there; its open files stay as they are."""


def local_front(wanted: WantedFront) -> Front | None:
    """Return the front with which this process can mount EROFS over local files by itself.

    None if it cannot, or if FUSE is wanted.
    """
    try:
        choice = choose(wanted, probe())
    except MountError:
        return None
    return choice.front if choice.is_erofs and not choice.via_service else None


def mount_local(
    snapshot: Snapshot,
    blobs: Sequence[Path],
    wanted: LocalMount,
    *,
    device_blocks: int = DEVICE_BLOCKS,
) -> Front:
    """Mount a snapshot over its blob; return the front.

    Needs root. Raises `MountError`, and nothing is mounted then. The image is built, or checked, as
    for any mount. The blob is not read: `check_blob` does that.
    """
    front = local_front(wanted.front)
    if front is None:
        raise MountError("EROFS cannot be mounted over local files here", "see docs/mounting.md")
    try:
        with ExitStack() as opened:
            image = _image(snapshot, wanted, BlobLayout.of(snapshot, device_blocks))
            devices = [os.open(path, os.O_PATH | os.O_CLOEXEC | os.O_NOFOLLOW) for path in blobs]
            for fd in devices:
                opened.callback(os.close, fd)
            if front is Front.LOOP:
                mount = erofs_mounts.mount_image_over_loop(image, devices)
            else:
                # The mount bypasses the blob's page cache for files of all sizes: a request of
                # their own costs a disk's access and no more, and the pages of the blob would never
                # be dropped and be in memory twice.
                direct_io = wanted.blob_cache != "buffered"
                mount = erofs_mounts.mount_image(image, devices, direct_io=direct_io)
            opened.callback(os.close, mount)
            control = _control_directory(snapshot, blobs, wanted, front)
            opened.callback(os.close, control)
            erofs_mounts.show(mount, control, [wanted.mountpoint], wanted.replace)
    except (OSError, SnapshotRefused, KernelImageTooLarge, KernelImageUnwritable) as error:
        raise MountError(f"{blobs[0]} cannot be mounted: {error}") from error
    return front


def _image(snapshot: Snapshot, wanted: LocalMount, layout: BlobLayout) -> Path:
    owner = ImageOwner(wanted.owner.uid, wanted.owner.gid, private=wanted.private)
    return kernel_image(snapshot, snapshot.path.parent, owner, layout=layout)


def _control_directory(
    snapshot: Snapshot, blobs: Sequence[Path], wanted: LocalMount, front: Front
) -> int:
    """Return a detached file system in memory that holds `dataset.json`.

    It ends with the mount that it is shown in.
    """
    options = [
        ("source", "dieselfs-control"),
        ("size", str(_CONTROL_BYTES)),
        ("nr_inodes", "8"),
        ("mode", "0555"),
        ("uid", str(wanted.owner.uid)),
        ("gid", str(wanted.owner.gid)),
    ]
    mount = new_mount("tmpfs", options, ATTR_NOSUID | ATTR_NODEV)
    try:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        with open(os.open(DATASET_NAME, flags, 0o444, dir_fd=mount), "wb") as file:
            os.fchmod(file.fileno(), 0o444)
            file.write(_document(snapshot, blobs, wanted, front))
    except BaseException:
        os.close(mount)
        raise
    return mount


def _document(snapshot: Snapshot, blobs: Sequence[Path], wanted: LocalMount, front: Front) -> bytes:
    """Return `dataset.json` as other mounts have it, without the facts that need a daemon."""
    document = {
        **snapshot_facts(snapshot),
        "blob": [os.fspath(path) for path in blobs],
        "options": {
            "mountpoint": os.fspath(wanted.mountpoint),
            "allow_other": not wanted.private,
            "uid": wanted.owner.uid,
            "gid": wanted.owner.gid,
        },
        "front": {"kind": LOCAL_KIND, "over": front.value},
        "mounted": timestamp(time.time_ns()),
    }
    return encoded(document)
