"""Blobs on an SSD: a snapshot's whole content as local files, which EROFS reads without a daemon.

    <SSD folder>/blobs/<dataset>-<snapshot id>.blob
        all files, block-aligned, in inode order (`metadata.blob_layout`)
    <SSD folder>/blobs/<dataset>-<snapshot id>.blob1 …
        further devices, one for every 16 TiB
    <SSD folder>/blobs/<dataset>-<snapshot id>.blob.json
        the record: written last, so that a blob without it is incomplete

While a blob is written its files are called `.<name>.incomplete`, with all their blocks reserved.
`.<dataset>-<snapshot id>.progress` has the number of chunks that are on the disk: those are never
fetched again. A blob has no checksums of its own: the snapshot has one for each file.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Final, Self

from chunkstore.call_threads import CallThreads
from chunkstore.chunk_source import ChunkSource
from chunkstore.progress import NO_PROGRESS, Advance
from dieselfs.cache.ssd.blob_chunks import BlobWrite, chunk_writes, damaged_files
from dieselfs.cache.ssd.blob_files import (
    FOLDER,
    PROGRESS_SUFFIX,
    RECORD_SUFFIX,
    BlobPlaces,
    BlobRecord,
    is_own,
    locked,
    read_document,
    replace_document,
    sync_folder,
)
from dieselfs.cache.ssd.byte_sizes import human_size
from dieselfs.errors import Conflict, LocalFileError
from metadata.blob_layout import DEVICE_BLOCKS, BlobLayout
from metadata.snapshot import Snapshot

JOBS: Final = 16
_CHECK_JOBS: Final = 4
_PARTS_AT_ONCE: Final = 1000
"""Parts of a gathered write: IOV_MAX is 1,024."""
_STEP_BYTES: Final = 256 << 20
"""Bytes written between two records of progress.

A kill costs at most these, with the chunks under way.
"""


@dataclass(frozen=True, slots=True)
class BlobReport:
    """The result of one call of `write_blob`."""

    paths: tuple[Path, ...]
    bytes: int
    """Bytes of the blob, with the padding of its blocks."""
    chunks: int
    chunks_before: int
    """Chunks that were on the disk before the call."""
    seconds: float


@dataclass(frozen=True, slots=True)
class PinnedMount:
    """A blob in an SSD's folder, complete or not."""

    dataset: str
    snapshot: str
    bytes: int
    """Bytes reserved on the disk."""
    is_complete: bool


def find_blob(
    folder: Path, snapshot: Snapshot, device_blocks: int = DEVICE_BLOCKS
) -> list[Path] | None:
    """Return the files of a snapshot's blob, by device.

    None unless the blob is complete, of the right size, and writable by this user alone.
    """
    places = BlobPlaces.of(folder, snapshot)
    layout = BlobLayout.of(snapshot, device_blocks)
    record = BlobRecord.of(snapshot, layout)
    if not is_own(places.folder, stat.S_ISDIR) or record.is_in(places.record) is None:
        return None
    paths = [places.blob(device) for device in range(layout.device_count)]
    for path, size in zip(paths, record.bytes, strict=True):
        if not is_own(path, stat.S_ISREG) or path.stat().st_size != size:
            return None
    return paths


def pinned_mounts(folder: Path) -> list[PinnedMount]:
    """Return the blobs in an SSD's folder, incomplete ones too, by name."""
    found = []
    with suppress(OSError):
        for path in sorted((folder / FOLDER).iterdir()):
            is_record = path.name.endswith(RECORD_SUFFIX)
            if not is_record and not path.name.endswith(PROGRESS_SUFFIX):
                continue
            document = read_document(path)
            try:
                sizes = [int(size) for size in document["bytes"]]
                names = str(document["dataset"]), str(document["snapshot"])
            except (KeyError, TypeError, ValueError):
                continue
            found.append(PinnedMount(*names, sum(sizes), is_record))
    return found


def remove_blob(folder: Path, snapshot: Snapshot) -> int:
    """Remove a snapshot's blob, complete or not; return its bytes.

    The kernel keeps a mounted blob until it is unmounted.
    """
    return _remove(BlobPlaces.of(folder, snapshot))


def remove_blobs(folder: Path, dataset: str) -> int:
    """Remove the blobs of all snapshots of a dataset; return their bytes."""
    mine = {of.snapshot for of in pinned_mounts(folder) if of.dataset == dataset}
    return sum(_remove(BlobPlaces(folder, f"{dataset}-{snapshot}")) for snapshot in sorted(mine))


def write_blob(
    snapshot: Snapshot,
    source: ChunkSource,
    folder: Path,
    advance: Advance = NO_PROGRESS.advance,
    *,
    jobs: int = JOBS,
    device_blocks: int = DEVICE_BLOCKS,
) -> BlobReport:
    """Write a verified snapshot's content into an SSD's folder.

    A call resumes where an earlier one was killed. `source` verifies the bytes that it returns.
    Raises the errors of `source`, and `Conflict` while another process writes the same blob. Raises
    `LocalFileError` if the disk fails, or has too little room; then no room is taken. Written bytes
    stay for the next call. Raises it too if the blob is removed meanwhile.
    """
    began = time.monotonic()
    try:
        with _BlobWriter(snapshot, folder, BlobLayout.of(snapshot, device_blocks)) as writer:
            before = writer.chunks_done
            writer.run(source, advance, jobs)
    except OSError as error:
        where = folder / FOLDER
        raise LocalFileError(
            f"cannot write the blob of {snapshot.dataset.name} to {where}: "
            f"{error.strerror or error}",
            "check the disk, then run the same command again: it continues",
        ) from error
    paths = find_blob(folder, snapshot, device_blocks)
    if paths is None:
        raise LocalFileError(
            f"the blob of {snapshot.dataset.name} in {folder / FOLDER} was changed while it was "
            "written",
            "run the same command again",
        )
    size = sum(path.stat().st_size for path in paths)
    seconds = time.monotonic() - began
    return BlobReport(tuple(paths), size, snapshot.chunk_count, before, seconds)


def check_blob(
    snapshot: Snapshot,
    paths: Sequence[Path],
    advance: Advance = NO_PROGRESS.advance,
    *,
    device_blocks: int = DEVICE_BLOCKS,
) -> list[int]:
    """Read every byte of a blob from the disk; return the inodes of the damaged files.

    Raises `OSError`.
    """
    layout = BlobLayout.of(snapshot, device_blocks)
    with ExitStack() as opened:
        devices = [os.open(path, os.O_RDONLY | os.O_CLOEXEC) for path in paths]
        for fd in devices:
            opened.callback(os.close, fd)

        def check(number: int) -> list[int]:
            damaged = damaged_files(snapshot, layout, number, devices)
            advance(1, _bytes_of(snapshot, number))
            return damaged

        calls = [partial(check, number) for number in range(snapshot.chunk_count)]
        found = CallThreads("blob-check", _CHECK_JOBS).run_all(calls, _CHECK_JOBS)
    return [inode for of_chunk in found for inode in of_chunk]


class _BlobWriter:
    """The writer of one blob, which no other process writes meanwhile."""

    def __init__(self, snapshot: Snapshot, folder: Path, layout: BlobLayout) -> None:
        """Reserve the blocks; raise `OSError`, `Conflict` or `LocalFileError`."""
        self._snapshot, self._layout = snapshot, layout
        self._places = BlobPlaces.of(folder, snapshot)
        self._record = BlobRecord.of(snapshot, layout)
        self._tier, self._device_blocks = folder, layout.device_blocks
        self._lock, self._recording = threading.Lock(), threading.Lock()
        self._wrote = threading.Condition(self._lock)
        self._writes = 0
        """Writes under way."""
        self._out_of_turn: set[int] = set()
        self._unrecorded_bytes = 0
        self._stopped = threading.Event()
        self.chunks_done = 0
        """All chunks below this number are written."""
        self._devices: list[int] = []
        self._open_files = ExitStack()
        with ExitStack() as undo:
            undo.callback(self._open_files.close)
            self._open()
            undo.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Stop writing. A thread that waits for its source may continue; it writes nothing more."""
        with self._wrote:
            self._stopped.set()
            self._wrote.wait_for(lambda: not self._writes)
        self._open_files.close()

    def is_published(self) -> bool:
        """Return True if the blob is complete and published."""
        return find_blob(self._tier, self._snapshot, self._device_blocks) is not None

    def run(self, source: ChunkSource, advance: Advance, jobs: int) -> None:
        """Write what is missing, then publish it."""
        if self.is_published():
            return
        numbers = iter(range(self.chunks_done, self._snapshot.chunk_count))
        work = partial(self._write_all, numbers, source, advance)
        try:
            CallThreads("blob-write", jobs).run_all([work] * jobs, jobs)
        except BaseException:
            self._stopped.set()
            with suppress(LocalFileError):  # the files were removed
                self._record_progress()
            raise
        self._publish()

    def _open(self) -> None:
        places = self._places
        places.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with locked(places.folder):
            if self.is_published():
                self.chunks_done = self._snapshot.chunk_count
                return
            made = self._open_devices()
            progress = None if made else self._record.is_in(places.progress)
            try:
                self._reserve()
            except BaseException:
                for path in made:
                    path.unlink(missing_ok=True)
                raise
        if progress is None:
            self._record_progress()
        else:
            done = progress.get("chunks_done")
            self.chunks_done = done if isinstance(done, int) else 0

    def _open_devices(self) -> list[Path]:
        """Open the devices; return those that were absent or of another size.

        Raises `Conflict` if another process writes this blob.
        """
        places = self._places
        made: dict[int, Path] = {}
        for device, size in enumerate(self._record.bytes):
            path = places.incomplete(device)
            if not path.exists() and places.blob(device).exists():
                path = places.blob(device)  # killed while it was published
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            self._open_files.callback(os.close, fd)
            self._devices.append(fd)
            if os.fstat(fd).st_size != size:
                made[fd] = path
        try:
            fcntl.flock(self._devices[0], fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Conflict(
                "another process writes the blob of "
                f"{self._snapshot.dataset.name}@{self._snapshot.id}",
                "wait for it, then run the same command again",
            ) from None
        for fd in made:
            os.ftruncate(fd, 0)
        return list(made.values())

    def _reserve(self) -> None:
        """Reserve all blocks, so that no write finds the disk full."""
        taken = sum(os.fstat(fd).st_blocks * 512 for fd in self._devices)
        needed = max(0, sum(self._record.bytes) - taken)
        disk = os.statvfs(self._places.folder)
        free = disk.f_bavail * disk.f_frsize
        if needed > free:
            raise self._no_room(needed, free)
        for fd, size in zip(self._devices, self._record.bytes, strict=True):
            try:
                os.posix_fallocate(fd, 0, size)
            except OSError as error:
                if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                    raise
                raise self._no_room(needed, free) from error

    def _no_room(self, needed: int, free: int) -> LocalFileError:
        return LocalFileError(
            f"{self._places.folder}: the blob of {self._snapshot.dataset.name} needs "
            f"{human_size(needed)}, "
            f"and the disk has {human_size(free)} free",
            "free space, or evict datasets that `dlcmd cache ls` shows",
        )

    def _write_all(self, numbers: Iterator[int], source: ChunkSource, advance: Advance) -> None:
        while not self._stopped.is_set():
            with self._lock:
                number = next(numbers, None)
            if number is None:
                return
            try:
                written = 0
                for write in chunk_writes(self._snapshot, self._layout, number, source):
                    if not self._write(write):
                        return
                    written += write.length
            except BaseException:
                self._stopped.set()
                raise
            self._finish(number, written)
            advance(1, _bytes_of(self._snapshot, number))

    def _write(self, write: BlobWrite) -> bool:
        """Write the bytes; False if the writer has stopped."""
        with self._lock:
            if self._stopped.is_set():
                return False
            self._writes += 1
        try:
            _write_all_of(self._devices[write.device], write)
        finally:
            with self._wrote:
                self._writes -= 1
                self._wrote.notify_all()
        return True

    def _finish(self, number: int, written: int) -> None:
        with self._lock:
            self._out_of_turn.add(number)
            while self.chunks_done in self._out_of_turn:
                self._out_of_turn.discard(self.chunks_done)
                self.chunks_done += 1
            self._unrecorded_bytes += written
            is_due = self._unrecorded_bytes >= _STEP_BYTES
            if is_due:
                self._unrecorded_bytes = 0
        if is_due:
            self._record_progress()

    def _record_progress(self) -> None:
        """Record the progress, after all recorded bytes are on the disk."""
        with self._recording:
            done = self.chunks_done
            for fd in self._devices:
                os.fdatasync(fd)
            document = {**asdict(self._record), "chunks_done": done}
            with locked(self._places.folder):
                self._require_files()
                replace_document(self._places.progress, document)

    def _require_files(self) -> None:
        """Raise `LocalFileError` if the files were removed; the folder is locked.

        Another writer may have made others of their names, which this one must not take for its
        own.
        """
        for device, fd in enumerate(self._devices):
            mine, there = os.fstat(fd), None
            for path in (self._places.incomplete(device), self._places.blob(device)):
                with suppress(FileNotFoundError):
                    there = there or path.stat()
            if there is None or not os.path.samestat(mine, there):
                raise LocalFileError(
                    f"the blob of {self._snapshot.dataset.name} in {self._places.folder} was "
                    "removed while it was written",
                    "run the same command again",
                )

    def _publish(self) -> None:
        places = self._places
        for fd in self._devices:
            os.fsync(fd)
        with locked(places.folder):
            self._require_files()
            for device in range(self._layout.device_count):
                if places.incomplete(device).exists() or not places.blob(device).exists():
                    os.rename(places.incomplete(device), places.blob(device))
            replace_document(places.record, asdict(self._record))
            places.progress.unlink(missing_ok=True)
            for fd in self._devices:
                os.fchmod(fd, 0o400)
            sync_folder(places.folder)


def _write_all_of(fd: int, write: BlobWrite) -> None:
    at = write.start
    for first in range(0, len(write.parts), _PARTS_AT_ONCE):
        some = write.parts[first : first + _PARTS_AT_ONCE]
        length = sum(map(len, some))
        if os.pwritev(fd, some, at) != length:
            raise OSError(errno.EIO, "a write was cut short")
        at += length


def _bytes_of(snapshot: Snapshot, number: int) -> int:
    files = snapshot.files_in_chunk(number)
    return int(snapshot.columns.length[files.start : files.stop].sum())


def _remove(places: BlobPlaces) -> int:
    removed = 0
    if not places.present():
        return removed
    with locked(places.folder):
        for path in places.present():
            with suppress(FileNotFoundError):
                removed += path.stat().st_blocks * 512
                path.unlink()
    return removed
