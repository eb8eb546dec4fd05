"""Kernel images beside their snapshots.

An image is built once, found again by name, checked by hash, and removed after its snapshot. The
name holds everything that an image depends on: the snapshot, the owner, the writer's version, and
the hash of the file itself. A file whose content does not have that hash is built again. So a
crash, a full disk or a damaged block costs a build, never a wrong name in a mount. The hash finds
accidents, not intent: the folder must belong to its owner alone, as for snapshots.
"""

from __future__ import annotations

import logging
import os
import stat
from contextlib import suppress
from pathlib import Path
from typing import IO, Final

import xxhash

from chunkstore.stores.object_store import Buffer
from metadata.blob_layout import BlobLayout
from metadata.errors import KernelImageUnwritable
from metadata.kernel_image import WRITER_VERSION, write_kernel_image
from metadata.kernel_image_inodes import ImageOwner
from metadata.kernel_image_name import IMAGE_SUFFIX, image_name_parts
from metadata.snapshot import Snapshot
from metadata.snapshot_folder import SUFFIX, file_name, publish

log = logging.getLogger(__name__)

_READ_BYTES: Final = 1 << 20


def kernel_image(
    snapshot: Snapshot,
    folder: Path,
    owner: ImageOwner,
    *,
    layout: BlobLayout | None = None,
    is_verified: bool = False,
) -> Path:
    """Return the path of a snapshot's image in `folder`; build it unless a sound one is there.

    The check reads the file (0.03 s for 1.28 million files). A build takes 0.6 s, and before it
    `Snapshot.verify` 1.1 s, unless the caller has done that. Raises `SnapshotRefused`,
    `KernelImageTooLarge`, and `KernelImageUnwritable` if the folder takes no image.
    """
    stem = _stem(snapshot, owner)
    try:
        found = _sound_image(folder, stem)
        if found is None:
            if not is_verified:
                Snapshot.verify(snapshot.path)
            found = _build(snapshot, folder, owner, stem, layout)
            _remove_orphans(folder, snapshot.dataset.name, snapshot.id)
    except OSError as error:
        raise KernelImageUnwritable(
            f"cannot write the kernel image of {snapshot.dataset.name} to {folder}: "
            f"{error.strerror or error}; "
            f"it needs about 130 bytes a file, {snapshot.file_count * 130 >> 20} MiB: "
            "free space there, or use another folder"
        ) from error
    return found


def remove_with_images(snapshot: Path) -> None:
    """Delete a local snapshot file and the images beside it that were built from it.

    A mount continues with the files that it has open.
    """
    snapshot.unlink(missing_ok=True)
    stem = snapshot.name.removesuffix(SUFFIX)
    for path in snapshot.parent.glob(f"{stem}-u*{IMAGE_SUFFIX}"):
        if image_name_parts(path.name):
            path.unlink(missing_ok=True)


def _stem(snapshot: Snapshot, owner: ImageOwner) -> str:
    """Return the name without the hash and the suffix."""
    private = "-private" if owner.private else ""
    return (
        f"{snapshot.dataset.name}-{snapshot.id}-u{owner.uid}-g{owner.gid}{private}"
        f"-w{WRITER_VERSION}"
    )


def _sound_image(folder: Path, stem: str) -> Path | None:
    """Return an image of this name whose content has the hash in its name; remove damaged ones."""
    if not folder.is_dir():
        return None
    length = len(stem) + 1 + 32 + len(IMAGE_SUFFIX)
    for path in sorted(folder.glob(f"{stem}-*{IMAGE_SUFFIX}")):
        if len(path.name) != length or not image_name_parts(path.name):
            continue
        expected = path.name[len(stem) + 1 : -len(IMAGE_SUFFIX)]
        with suppress(FileNotFoundError):
            if _hash_of(path) == expected:
                return path
            log.warning(
                "%s is damaged (its hash differs from the one in its name); it is built again", path
            )
            path.unlink()
    return None


def _hash_of(path: Path) -> str:
    """Return the hash of a regular file, read block by block.

    It is '' for anything else, also for a link.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        raise
    except OSError:
        return ""
    with open(descriptor, "rb", buffering=0) as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return ""
        digest = xxhash.xxh3_128()
        try:
            while block := file.read(_READ_BYTES):
                digest.update(block)
        except OSError:  # a bad sector
            return ""
    return digest.hexdigest()


class _HashingFile:
    """A file that hashes the bytes written to it."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._digest = xxhash.xxh3_128()

    def write(self, data: Buffer) -> int:
        self._digest.update(data)
        return self._file.write(data)

    def hexdigest(self) -> str:
        return str(self._digest.hexdigest())


def _build(
    snapshot: Snapshot, folder: Path, owner: ImageOwner, stem: str, layout: BlobLayout | None
) -> Path:
    with publish(folder) as (file, finish):
        hashing = _HashingFile(file)
        write_kernel_image(snapshot, hashing, owner, layout=layout)
        snapshot.check_unchanged()  # an image outlives the process
        return finish(f"{stem}-{hashing.hexdigest()}{IMAGE_SUFFIX}")


def _remove_orphans(folder: Path, dataset: str, current: str) -> None:
    """Remove the images of the dataset whose snapshots no longer exist.

    A mount continues with an image that has lost its name. `current` is the id of a snapshot that
    may lie in another folder. A failure is not an error: the next build tries again.
    """
    with suppress(OSError):
        for path in list(folder.iterdir()):
            parts = image_name_parts(path.name)
            if parts is None or parts[0] != dataset or parts[1] == current:
                continue
            with suppress(OSError):
                if not (folder / file_name(*parts)).exists():
                    path.unlink()
                    log.info("removed %s: its snapshot no longer exists", path)
