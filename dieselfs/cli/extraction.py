"""Copies of files from a dataset into a local folder, chunk by chunk.

A list of copies says where each file goes. Files are sorted by their places in chunks, so that one
or two reads of the store give all files of a chunk.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, TypeAlias

from chunkstore.errors import Corrupt, NotFound
from chunkstore.progress import Progress
from dieselfs.cli.local_folder import LinkLeadsOutside, LocalDirectory, LocalFolder
from metadata.errors import PathNotFound

if TYPE_CHECKING:
    from dieselfs.client import Client
    from dieselfs.dataset.file_stat import FileStat

WINDOW_FILES: Final = 1 << 16
"""Number of files that are sorted by chunk at a time; it bounds memory, at about 40 MB."""
_BATCH_BYTES: Final = 8 << 20
"""The most bytes that one thread holds: a chunk of ordinary size, whole."""
_STREAMED_BYTES: Final = 4 << 20
"""The size above which a file is read and written in blocks."""
_SLOW_S: Final = 1e-3
"""The time for one small file from which on more threads write; a local disk takes 0.05 ms."""

Content: TypeAlias = bytes | memoryview


@dataclass(frozen=True, slots=True)
class Copy:
    """One file or directory, and its path below the local folder ('' for the folder itself)."""

    entry: FileStat
    target: str

    @property
    def parent(self) -> str:
        """The path of its directory below the local folder."""
        return self.target.rpartition("/")[0]

    @property
    def name(self) -> str:
        """Its name in that directory."""
        return self.target.rpartition("/")[2]

    @property
    def is_link(self) -> bool:
        """True if it is a symbolic link, whose content is its target."""
        return self.entry.kind == "link"


class WriteTurns:
    """Permits for threads that write small files: one at first, more while writes are slow.

    System calls of a few microseconds, made by several threads of one interpreter, take longer than
    the same calls of one thread. On a file system behind a network they wait, and gain by company.
    """

    def __init__(self, most: int) -> None:
        self._most, self.permits = most, 1
        self._free = threading.Semaphore(1)

    @contextmanager
    def turn(self, files: int, clock: Callable[[], float] = time.perf_counter) -> Iterator[None]:
        """Wait for a permit to write so many files, and hold it."""
        with self._free:
            begin = clock()
            yield
            is_slow = clock() - begin > _SLOW_S * files
            if is_slow and self.permits < self._most:
                self.permits += 1
                self._free.release()


@dataclass(slots=True)
class Extraction:
    """Copies into one folder, with counts of the results."""

    folder: LocalFolder
    open_client: Callable[[], Client]
    """Opens a client for one thread."""
    on_failure: Callable[[FileStat, Exception], None]
    """Called with each file that is damaged or missing in the store, and each link that is not
    made; the other files go on.
    """
    progress: Progress
    jobs: int = 1
    ignore_times: bool = False
    """Write even files that exist with the same size and mtime."""
    files: int = 0
    bytes: int = 0
    skipped: int = 0
    failed: int = 0
    outside: int = 0
    """Symbolic links that were not made, since they may lead out of the folder."""
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _local: threading.local = field(default_factory=threading.local)
    _turns: WriteTurns = field(init=False)
    _is_stopped: bool = False

    def __post_init__(self) -> None:
        self._turns = WriteTurns(self.jobs)

    def run(self, copies: Iterable[Copy]) -> None:
        """Make directories, fetch files, and set the modes and mtimes of the directories.

        The last step goes from the deepest directory up.
        """
        directories: list[Copy] = []
        # One thread more than jobs: it reads the next chunk while the others write.
        with ThreadPoolExecutor(self.jobs + 1, "get") as pool:
            for window in _windows(self._files(copies, directories)):
                self._fetch_all(pool, window)
        for copy in sorted(directories, key=_depth, reverse=True):
            if copy.target or not self.folder.existed:
                self.folder.restore_directory(copy.target, copy.entry.mode, copy.entry.mtime_ns)

    def _files(self, copies: Iterable[Copy], directories: list[Copy]) -> Iterator[Copy]:
        for copy in copies:
            if copy.entry.kind != "directory":
                yield copy
                continue
            directories.append(copy)
            if copy.target:
                self.folder.make_directory(copy.target)

    def _fetch_all(self, pool: ThreadPoolExecutor, window: list[Copy]) -> None:
        futures = [pool.submit(self._fetch_batch, batch) for batch in batches(window)]
        try:
            wait(futures, return_when=FIRST_EXCEPTION)
            for future in filter(Future.done, futures):
                future.result()  # raises the first error
        except BaseException:
            self._is_stopped = True
            raise
        finally:
            for future in futures:
                future.cancel()

    def _fetch_batch(self, batch: Sequence[Copy]) -> None:
        """Fetch files of one chunk."""
        if not self.ignore_times:
            batch = list(self._missing(batch))
        if not batch:
            return
        if batch[0].entry.size > _STREAMED_BYTES:
            self._fetch_one_by_one(batch)
            return
        entries = [copy.entry for copy in batch if copy.entry.size]
        try:
            contents = self._client().read_files(entries) if entries else ()
        except (Corrupt, NotFound):
            self._fetch_one_by_one(batch)
        else:
            with self._turns.turn(len(batch)):
                self._write(batch, iter(contents))

    def _missing(self, batch: Iterable[Copy]) -> Iterator[Copy]:
        """Yield the copies that are not there yet, and count the others."""
        for parent, group in _by_parent(batch):
            if self.folder.was_made(parent):
                yield from group
                continue
            with self.folder.directory(parent) as directory:
                skipped = 0
                for copy in group:
                    entry = copy.entry
                    is_link = copy.is_link
                    if directory.is_same(copy.name, entry.size, entry.mtime_ns, is_link=is_link):
                        skipped += 1
                    else:
                        yield copy
            self._count(skipped=skipped)

    def _write(self, batch: Iterable[Copy], contents: Iterator[Content]) -> None:
        files = size = 0
        for parent, group in _by_parent(batch):
            with self.folder.directory(parent) as directory:
                for copy in group:
                    if self._is_stopped:
                        return
                    entry = copy.entry
                    content = (next(contents),) if entry.size else ()
                    if copy.is_link:
                        self._make_link(directory, copy, content)
                        continue
                    directory.write_file(copy.name, entry.mode, entry.mtime_ns, content)
                    files, size = files + 1, size + entry.size
        self._count(files=files, size=size)

    def _make_link(self, directory: LocalDirectory, copy: Copy, content: Iterable[Content]) -> None:
        target, depth = b"".join(content), copy.target.count("/")
        try:
            directory.make_link(copy.name, target, copy.entry.mtime_ns, depth)
        except LinkLeadsOutside as error:
            self._count(outside=1)
            self.on_failure(copy.entry, error)
        else:
            self._count(files=1, size=len(target))

    def _fetch_one_by_one(self, batch: Iterable[Copy]) -> None:
        """Fetch files that are large, or of which some are damaged or missing."""
        for copy in batch:
            if self._is_stopped:
                return
            try:
                self._fetch_alone(copy)
            except (Corrupt, NotFound, PathNotFound) as error:
                self._count(failed=1)
                self.on_failure(copy.entry, error)

    def _fetch_alone(self, copy: Copy) -> None:
        try:
            self._stream(copy)
        except NotFound:
            now = self._client().stat(copy.entry.path)
            if now.chunk in (copy.entry.chunk, None):
                raise
            self._stream(Copy(now, copy.target))  # a purge has moved it in between

    def _stream(self, copy: Copy) -> None:
        entry = copy.entry
        content = self._client().stream_file(entry) if entry.size else ()
        with self.folder.directory(copy.parent) as directory:
            if copy.is_link:
                self._make_link(directory, copy, content)
                return
            size = directory.write_file(copy.name, entry.mode, entry.mtime_ns, content)
        self._count(files=1, size=size)

    def _client(self) -> Client:
        client: Client | None = getattr(self._local, "client", None)
        if client is None:
            client = self._local.client = self.open_client()
        return client

    def _count(
        self, files: int = 0, size: int = 0, skipped: int = 0, failed: int = 0, outside: int = 0
    ) -> None:
        with self._lock:
            self.files += files
            self.bytes += size
            self.skipped += skipped
            self.failed += failed
            self.outside += outside
        self.progress.advance(files + skipped + failed + outside, size)


def batches(window: Iterable[Copy]) -> Iterator[list[Copy]]:
    """Yield files of one chunk, sorted by directory, in batches that fit in memory.

    `window` is sorted by chunk. A file that is larger than a block is alone.
    """
    batch: list[Copy] = []
    size = 0
    for copy in window:
        entry = copy.entry
        is_full = size + entry.size > _BATCH_BYTES or entry.size > _STREAMED_BYTES
        if batch and (is_full or entry.chunk != batch[0].entry.chunk):
            yield sorted(batch, key=_parent)
            batch, size = [], 0
        batch.append(copy)
        size += entry.size
        if entry.size > _STREAMED_BYTES:
            size = _BATCH_BYTES  # the next file begins another batch
    if batch:
        yield sorted(batch, key=_parent)


def _parent(copy: Copy) -> str:
    return copy.parent


def _by_parent(batch: Iterable[Copy]) -> Iterator[tuple[str, Iterator[Copy]]]:
    return itertools.groupby(batch, _parent)


def _depth(copy: Copy) -> int:
    return copy.target.count("/") + 1 if copy.target else 0


def _windows(copies: Iterator[Copy]) -> Iterator[list[Copy]]:
    """Yield windows of files, each window in the order in which its files lie in their chunks."""
    while window := list(itertools.islice(copies, WINDOW_FILES)):
        window.sort(key=lambda copy: (copy.entry.chunk or "", copy.entry.offset))
        yield window
