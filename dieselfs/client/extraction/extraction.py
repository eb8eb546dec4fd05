"""Copies of files from a dataset into a local folder, chunk by chunk.

A list of copies says where each file goes. Files are sorted by their places in chunks, so that one
or two reads of the store give all files of a chunk. Threads of this process read and verify them;
`writers` says who writes.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Protocol

from chunkstore.errors import Corrupt, NotFound
from chunkstore.progress import NO_PROGRESS, Progress
from dieselfs.client.extraction.copies import (
    STREAMED_BYTES,
    Copy,
    CopyPlan,
    batches,
    by_parent,
    depth,
    windows,
)
from dieselfs.client.extraction.local_folder import LocalFolder
from dieselfs.client.extraction.writers import Content, Writers, row_of
from metadata.errors import PathNotFound

if TYPE_CHECKING:
    from dieselfs.dataset.file_stat import FileStat

_MANY_FILES: Final = 1000
"""Number of files from which on processes are started: they take 5 ms each, a file 0.05 ms."""


class FileSource(Protocol):
    """The part of `Client` that an extraction reads from. For one thread at a time."""

    def sibling(self) -> FileSource:
        """Open a source of the same files for another thread, which closes it."""
        ...

    def walk(self, path: str, /) -> Iterator[FileStat]:
        """Yield everything below a directory, each directory before its content."""
        ...

    def stat(self, path: str, /) -> FileStat:
        """Return the attributes of a path as they are now; raise `PathNotFound`."""
        ...

    def read_files(self, files: Sequence[FileStat], /) -> Sequence[bytes | memoryview]:
        """Return the contents of files of one chunk; raise `Corrupt` and `NotFound`."""
        ...

    def stream_file(self, file: FileStat, /) -> Iterator[bytes | memoryview]:
        """Yield the content of one file in blocks; raise as `read_files` does."""
        ...

    def close(self) -> None:
        """Release it."""
        ...


def extract(
    source: FileSource,
    plan: CopyPlan,
    *,
    on_failure: Callable[[FileStat, Exception], None],
    jobs: int | None = None,
    ignore_times: bool = False,
    progress: Progress = NO_PROGRESS,
) -> Extraction:
    """Copy what the plan names, and return the counts; see `Extraction`.

    Raises `LocalFileError` if the folder cannot be written.
    """
    with closing(LocalFolder(plan.folder)) as folder:
        done = Extraction(
            folder, source.sibling, on_failure, progress, jobs or _default_jobs(), ignore_times
        )
        done.run(plan.copies(source.walk))
    return done


def _default_jobs() -> int:
    return min(8, os.cpu_count() or 1)


@dataclass(slots=True)
class Extraction:
    """Copies into one folder, with counts of the results."""

    folder: LocalFolder
    open_source: Callable[[], FileSource]
    """Opens a source for one thread; `run` closes it."""
    on_failure: Callable[[FileStat, Exception], None]
    """Called with each file that is damaged or missing in the store, and each link that is not
    made; the other files go on.
    """
    progress: Progress
    jobs: int = 1
    """Number of reading threads, less one; of writers, see `Writers`."""
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
    _opened: ExitStack = field(default_factory=ExitStack)
    _writers: Writers = field(init=False)

    def __post_init__(self) -> None:
        self._writers = Writers(self.folder, self.jobs)

    def run(self, copies: Iterable[Copy]) -> None:
        """Make directories, fetch files, and set the modes and mtimes of the directories.

        The last step goes from the deepest directory up. An exception, an interrupt too, leaves no
        temporary file and no process behind.
        """
        directories: list[Copy] = []
        with self._opened:
            self._opened.callback(self._writers.close)
            # One thread more than jobs: it reads the next chunk while the others write.
            with ThreadPoolExecutor(self.jobs + 1, "get") as pool:
                for window in windows(self._files(copies, directories)):
                    if len(window) >= _MANY_FILES:
                        self._writers.start_processes()
                    self._fetch_all(pool, window)
        for copy in sorted(directories, key=depth, reverse=True):
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
            self._writers.stopped.set()
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
        if batch[0].entry.size > STREAMED_BYTES:
            self._fetch_one_by_one(batch)
            return
        entries = [copy.entry for copy in batch if copy.entry.size]
        try:
            contents = self._source().read_files(entries) if entries else ()
        except (Corrupt, NotFound):
            self._fetch_one_by_one(batch)
        else:
            self._write(batch, contents)

    def _missing(self, batch: Iterable[Copy]) -> Iterator[Copy]:
        """Yield the copies that are not there yet, and count the others."""
        for parent, group in by_parent(batch):
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

    def _write(self, batch: Sequence[Copy], contents: Iterable[Content]) -> None:
        written = self._writers.write([row_of(copy) for copy in batch], contents)
        self._count(written.files, written.bytes, outside=len(written.outside))
        for number, error in written.outside:
            self.on_failure(batch[number].entry, error)

    def _fetch_one_by_one(self, batch: Iterable[Copy]) -> None:
        """Fetch files that are large, or of which some are damaged or missing."""
        for copy in batch:
            if self._writers.stopped:
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
            now = self._source().stat(copy.entry.path)
            if now.chunk in (copy.entry.chunk, None):
                raise
            self._stream(Copy(now, copy.target))  # a purge has moved it in between

    def _stream(self, copy: Copy) -> None:
        entry = copy.entry
        content = self._source().stream_file(entry) if entry.size else ()
        if copy.is_link:
            self._write([copy], [b"".join(content)])
            return
        with self.folder.directory(copy.parent) as directory:
            size = directory.write_file(copy.name, entry.mode, entry.mtime_ns, content)
        self._count(files=1, size=size)

    def _source(self) -> FileSource:
        source: FileSource | None = getattr(self._local, "source", None)
        if source is None:
            source = self._local.source = self.open_source()
            self._opened.callback(source.close)
        return source

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
