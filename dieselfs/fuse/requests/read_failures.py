"""READs that fail: counted by kind, and logged with the file's path, a line for each failing read.

The kernel asks several times for what one reader waits for: in its readahead, then page by page.
Programs ask again too. So equal failures of a file are one line as long as they follow each other.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Final, TypeAlias

from chunkstore.chunk_source import FileExtent
from dieselfs.fuse.requests.errnos import RequestRefused, errno_of, log_failure
from metadata.snapshot import Snapshot

log = logging.getLogger(__name__)

QUIET_S: Final = 10.0
"""The time for which an equal failure of the same file gets no line of its own."""
_MOST_FILES: Final = 4096

PathOf: TypeAlias = Callable[[FileExtent], str | None]
"""A function that returns a file's path in the dataset; None if the file is not known."""


class ReadFailures:
    """The failures of one server's READs. Thread-safe."""

    def __init__(
        self,
        path_of: PathOf = lambda file: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._path_of, self._clock = path_of, clock
        self._lock = threading.Lock()
        self._kinds: Counter[str] = Counter()
        self._quiet: dict[tuple[str, str], tuple[float, int]] = {}
        """Until when a file's failure gets no line, and its number since the last line."""

    def kinds(self) -> Mapping[str, int]:
        """Return the number of failed READs by the name of their error."""
        with self._lock:
            return dict(sorted(self._kinds.items()))

    def errno(self, file: FileExtent | None, subject: object, error: Exception) -> int:
        """Count a failure, log it if it is new, and return the errno that answers it.

        `subject` is what the log names if the file has no known path.
        """
        if isinstance(error, RequestRefused):
            return error.number
        kind = type(error).__name__
        name = self._name(file, subject)
        with self._lock:
            self._kinds[kind] += 1
            repeats = self._repeats(name, kind)
        if repeats is not None:
            log_failure(log, "read", f"{name}{repeats}", error)
        return errno_of(error)

    def _name(self, file: FileExtent | None, subject: object) -> str:
        try:
            path = None if file is None else self._path_of(file)
        except Exception as error:  # a damaged snapshot: the failure itself is what matters
            log.debug("no path of %s: %s", subject, error)
            path = None
        return str(subject) if path is None else path

    def _repeats(self, name: str, kind: str) -> str | None:
        """Return what a line says of failures since the last one; None: this one gets no line."""
        now = self._clock()
        until, count = self._quiet.get((name, kind), (now, 0))
        if now < until:
            self._quiet[name, kind] = until, count + 1
            return None
        if len(self._quiet) >= _MOST_FILES:
            self._quiet = {key: kept for key, kept in self._quiet.items() if kept[0] > now}
        if len(self._quiet) < _MOST_FILES:
            self._quiet[name, kind] = now + QUIET_S, 0
        return f" (and {count} more times since the last line)" if count else ""


def path_of_file(snapshot: Snapshot, file: FileExtent) -> str | None:
    """Return the path of a file, or of the first one of a run of files, as a line shows it."""
    inode = snapshot.file_at(file.chunk.id, file.offset)
    return None if inode is None else shown_path(snapshot, inode)


def shown_path(snapshot: Snapshot, inode: int) -> str:
    """Return a path in the dataset for a line of a log: what cannot be printed is escaped."""
    path = os.fsdecode(snapshot.path_of(inode))
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in path)
