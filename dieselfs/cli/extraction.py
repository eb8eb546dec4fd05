"""Copies of files from a dataset into a local folder, several files at a time.

A list of copies says where each file goes.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from chunkstore.errors import Corrupt, NotFound
from chunkstore.progress import Progress
from dieselfs.cli.local_folder import LocalFolder

if TYPE_CHECKING:
    from dieselfs.client import Client
    from dieselfs.dataset.file_stat import FileStat

WINDOW_FILES: Final = 1 << 16
"""Number of files that are sorted by chunk at a time; it bounds memory, at about 40 MB."""
_BATCH_FILES: Final = 64


@dataclass(frozen=True, slots=True)
class Copy:
    """One file or directory, and its path below the local folder ('' for the folder itself)."""

    entry: FileStat
    target: str


@dataclass(slots=True)
class Extraction:
    """Copies into one folder, with counts of the results."""

    folder: LocalFolder
    open_client: Callable[[], Client]
    """Opens a client for one thread."""
    on_failure: Callable[[FileStat, Exception], None]
    """Called with each file that is damaged or missing in the store; the other files go on."""
    progress: Progress
    jobs: int = 1
    ignore_times: bool = False
    """Write even files that exist with the same size and mtime."""
    files: int = 0
    bytes: int = 0
    skipped: int = 0
    failed: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _local: threading.local = field(default_factory=threading.local)

    def run(self, copies: Iterable[Copy]) -> None:
        """Make directories, fetch files, and set the modes and mtimes of the directories.

        The last step goes from the deepest directory up.
        """
        directories: list[Copy] = []
        with ThreadPoolExecutor(self.jobs, "get") as pool:
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
        batches = (window[at : at + _BATCH_FILES] for at in range(0, len(window), _BATCH_FILES))
        futures = [pool.submit(self._fetch_batch, batch) for batch in batches]
        try:
            wait(futures, return_when=FIRST_EXCEPTION)
            for future in filter(Future.done, futures):
                future.result()  # raises the first error
        finally:
            for future in futures:
                future.cancel()

    def _fetch_batch(self, batch: list[Copy]) -> None:
        for copy in batch:
            if not self.ignore_times and self.folder.is_same(
                copy.target, copy.entry.size, copy.entry.mtime_ns
            ):
                self._count(skipped=1)
            else:
                self._fetch(copy)

    def _fetch(self, copy: Copy) -> None:
        entry = copy.entry
        try:
            with self.folder.new_file(copy.target, entry.mode, entry.mtime_ns) as file:
                size = self._client().read_to(entry.path, file)
        except (Corrupt, NotFound) as error:
            self._count(failed=1)
            self.on_failure(entry, error)
        else:
            self._count(files=1, size=size)

    def _client(self) -> Client:
        client: Client | None = getattr(self._local, "client", None)
        if client is None:
            client = self._local.client = self.open_client()
        return client

    def _count(self, files: int = 0, size: int = 0, skipped: int = 0, failed: int = 0) -> None:
        with self._lock:
            self.files += files
            self.bytes += size
            self.skipped += skipped
            self.failed += failed
        self.progress.advance(files + skipped + failed, size)


def _depth(copy: Copy) -> int:
    return copy.target.count("/") + 1 if copy.target else 0


def _windows(copies: Iterator[Copy]) -> Iterator[list[Copy]]:
    """Yield windows of files, each window in the order in which its files lie in their chunks."""
    while window := list(itertools.islice(copies, WINDOW_FILES)):
        window.sort(key=lambda copy: (copy.entry.chunk or "", copy.entry.offset))
        yield window
