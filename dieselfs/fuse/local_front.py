"""A mount without a daemon: the kernel's EROFS over a blob that lies on the SSD
(`dieselfs.ssd_blob`).

    image file ──▶ EROFS at the mountpoint ──▶ blob, a local file
                   └─ .dieselfs: a small tmpfs with `dataset.json`

Nobody serves it, and nothing is counted. Its control directory says what is mounted, so that `dlcmd
mounts` lists it and a sampler finds the snapshot; it takes no plans, and names no node memory, so
that programs do not try.
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
from dieselfs.fuse import erofs_mounts
from dieselfs.fuse.attributes import Owner
from dieselfs.fuse.control_documents import encoded, snapshot_facts, timestamp
from dieselfs.fuse.control_names import DATASET_NAME
from dieselfs.fuse.front_choice import (
    Front,
    WantedCache,
    WantedFront,
    choose,
    probe,
)
from dieselfs.fuse.mount_syscalls import ATTR_NODEV, ATTR_NOSUID, new_mount
from dieselfs.fuse.mount_table import LOCAL_KIND
from metadata.blob_layout import DEVICE_BLOCKS, BlobLayout
from metadata.errors import KernelImageTooLarge, KernelImageUnwritable, SnapshotRefused
from metadata.kernel_image_file import kernel_image
from metadata.kernel_image_inodes import Owner as ImageOwner
from metadata.snapshot import Snapshot

_CONTROL_BYTES: Final = 256 << 10


@dataclass(frozen=True, slots=True)
class LocalMount:
    """Where and how to mount locally."""

    mountpoint: Path
    """Resolved."""
    owner: Owner
    """Of everything in the mount."""
    private: bool = False
    """Only the owner gets past the root directory."""
    front: WantedFront = "auto"
    blob_cache: WantedCache = "auto"
    replace: bool = False
    """In the place of the local mount that is there; files that are open there stay as they are."""


def local_front(wanted: WantedFront) -> Front | None:
    """How this process can mount EROFS over local files by itself; None if it cannot, or if FUSE is
    wanted.
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
    """Mount a snapshot over its blob; how.

    Needs root. Raises `MountError`, and nothing is mounted then.

    The image is built, or checked, as for any mount. The blob is not read: `check_blob` does that.
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
                # Past the blob's page cache whatever the files' size: a request of their own costs
                # a disk's access and no more, and nobody drops the pages of the blob, which would
                # be in memory twice.
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
    """A file system in memory that holds `dataset.json`, nowhere yet.

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
    """`dataset.json` as other mounts have it, as far as there is something to say without a daemon."""
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
