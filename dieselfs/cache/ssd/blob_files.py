"""The files of a blob on an SSD (`dieselfs.cache.ssd.blob`): their names, and their documents."""

from __future__ import annotations

import fcntl
import json
import os
import re
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, Self

from metadata.blob_layout import BlobLayout
from metadata.snapshot import Snapshot

FOLDER: Final = "blobs"
RECORD_SUFFIX: Final = ".blob.json"
PROGRESS_SUFFIX: Final = ".progress"
_VERSION: Final = 1
_INCOMPLETE: Final = ".incomplete"
_NAME: Final = re.compile(
    r"\.?(?P<stem>[A-Za-z0-9][A-Za-z0-9._-]*-[0-9]{1,20}-[0-9a-f]{32})"
    r"(\.blob([0-9]+|\.json)?(\.incomplete)?|\.progress)"
)
_OTHERS_MAY_WRITE: Final = stat.S_IWGRP | stat.S_IWOTH


@dataclass(frozen=True, slots=True)
class BlobRecord:
    """The content of `.blob.json`; `.progress` adds the number of chunks that are done."""

    dataset: str
    dataset_id: str
    snapshot: str
    device_blocks: int
    bytes: tuple[int, ...]
    """The bytes of each device."""
    version: int = _VERSION

    @classmethod
    def of(cls, snapshot: Snapshot, layout: BlobLayout) -> Self:
        """Return the record of a snapshot's blob."""
        sizes = tuple(layout.device_bytes(device) for device in range(layout.device_count))
        dataset = snapshot.dataset
        return cls(dataset.name, dataset.id.hex(), snapshot.id, layout.device_blocks, sizes)

    def is_in(self, path: Path) -> dict[str, Any] | None:
        """Return the document at `path` if it is about this blob."""
        document = read_document(path)
        mine = json.loads(json.dumps(asdict(self)))
        is_mine = all(document.get(key) == value for key, value in mine.items())
        return document if is_mine else None


class BlobPlaces:
    """The paths of one snapshot's blob."""

    def __init__(self, folder: Path, stem: str) -> None:
        """`folder` is the folder of the SSD tier."""
        self.folder, self._stem = folder / FOLDER, stem

    @classmethod
    def of(cls, folder: Path, snapshot: Snapshot) -> Self:
        """Return the places of a snapshot's blob in the tier's `folder`."""
        return cls(folder, f"{snapshot.dataset.name}-{snapshot.id}")

    def blob(self, device: int) -> Path:
        """Return the path of a device of the complete blob."""
        return self.folder / f"{self._stem}.blob{device or ''}"

    def incomplete(self, device: int) -> Path:
        """Return the path of a device while the blob is written."""
        return self.folder / f".{self.blob(device).name}{_INCOMPLETE}"

    @property
    def record(self) -> Path:
        """The path of `.blob.json`."""
        return self.folder / f"{self._stem}{RECORD_SUFFIX}"

    @property
    def progress(self) -> Path:
        """The path of `.progress`."""
        return self.folder / f".{self._stem}{PROGRESS_SUFFIX}"

    def present(self) -> list[Path]:
        """Return all existing files of this blob, its record first."""
        with suppress(OSError):
            names = [_NAME.fullmatch(name) for name in os.listdir(self.folder)]
            mine = [self.folder / found[0] for found in names if found and found[1] == self._stem]
            return sorted(mine, key=lambda path: (path != self.record, path.name))
        return []


def is_own(path: Path, is_kind: Callable[[int], bool]) -> bool:
    """Return True if the path is of this kind and only this user may write to it."""
    try:
        found = path.lstat()
    except OSError:
        return False
    is_safe = found.st_uid == os.geteuid() and not found.st_mode & _OTHERS_MAY_WRITE
    return is_kind(found.st_mode) and is_safe


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Lock the folder, so that no other process finds, publishes or removes blobs meanwhile."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


def sync_folder(path: Path) -> None:
    """Make changes of a folder's names durable."""
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def read_document(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file; an empty one if the file is missing or invalid."""
    try:
        document = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return document if isinstance(document, dict) else {}


def replace_document(path: Path, document: dict[str, Any]) -> None:
    """Replace a document atomically, also in a crash."""
    temporary = path.with_name(f".{path.name}.{os.urandom(4).hex()}")
    try:
        with open(temporary, "x") as file:
            json.dump(document, file)
            file.flush()
            os.fsync(file.fileno())
        os.rename(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
