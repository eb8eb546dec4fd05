"""Entries of files distributed into parts, each small enough for memory.

They stay in memory while they are few, and go to a temporary file when they are many.
"""

from __future__ import annotations

import io
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np
import numpy.typing as npt

from metadata.errors import IndexUnavailable
from metadata.rebuild.head_columns import FILE_ENTRY


@dataclass(frozen=True, slots=True)
class NamedEntries:
    """Entries and their names, end to end."""

    rows: npt.NDArray[np.void]
    """The entries as `FILE_ENTRY`; `name_bytes` gives the ends of names."""
    heap: bytes

    @property
    def size_bytes(self) -> int:
        """The bytes of entries and names."""
        return self.rows.nbytes + len(self.heap)

    def names(self) -> list[bytes]:
        """Return the names, one for each entry."""
        ends = np.cumsum(self.rows["name_bytes"], dtype=np.int64).tolist()
        heap = self.heap
        return [heap[start:end] for start, end in zip([0, *ends[:-1]], ends, strict=False)]


def joined(parts: list[NamedEntries]) -> NamedEntries:
    """Return several sets of entries as one, in their order."""
    if len(parts) == 1:
        return parts[0]
    rows = np.concatenate([np.zeros(0, FILE_ENTRY), *(part.rows for part in parts)])
    return NamedEntries(rows, b"".join(part.heap for part in parts))


Route = Callable[[NamedEntries], npt.NDArray[np.integer]]
"""A function that returns the part of each entry."""


class DealtEntries:
    """The distribution of entries into parts, which keeps their order within each part.

    It holds `memory_bytes` of entries, three times that while it distributes them, and 50 bytes for
    each time that a part got some.
    """

    def __init__(self, route: Route, folder: Path | None, memory_bytes: int) -> None:
        self._route = route
        self._folder = folder
        self._memory_bytes = memory_bytes
        self._pending: list[NamedEntries] = []
        self._pending_bytes = 0
        self._file: IO[bytes] | None = None
        self._extents: defaultdict[int, list[tuple[int, int, int]]] = defaultdict(list)
        """The map part -> (offset in the file, entries, bytes of names)."""
        self._counts: defaultdict[int, int] = defaultdict(int)

    def add(self, entries: NamedEntries) -> None:
        """Add entries; distribute all that wait if they exceed `memory_bytes`."""
        self._pending.append(entries)
        self._pending_bytes += entries.size_bytes
        if self._pending_bytes >= self._memory_bytes:
            with self._translated():
                if self._file is None:
                    self._file = tempfile.TemporaryFile(  # noqa: SIM115 - `close` closes it
                        prefix="dieselfs-rebuild-", dir=self._folder
                    )
                self._deal(self._file)

    def all_added(self) -> None:
        """Distribute the last entries; parts can be read afterwards.

        If the entries never filled the memory, they stay in it.
        """
        with self._translated():
            if self._file is None:
                self._file = io.BytesIO()
            self._deal(self._file)
            self._file.flush()

    def count(self, part: int) -> int:
        """Return the number of entries of a part."""
        return self._counts[part]

    def entries_of(self, part: int) -> Iterator[NamedEntries]:
        """Yield the entries of the part in the order of adding.

        Each item has at most `memory_bytes` and one addition.
        """
        file = self._file
        assert file is not None
        for at, count, heap_bytes in self._extents[part]:
            file.seek(at)
            rows = np.frombuffer(file.read(count * FILE_ENTRY.itemsize), FILE_ENTRY)
            yield NamedEntries(rows, file.read(heap_bytes))

    def close(self) -> None:
        """Close the temporary file, which removes it."""
        if self._file is not None:
            with suppress(OSError):  # bytes that a full disk refused are useless now
                self._file.close()

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            folder = self._folder or tempfile.gettempdir()
            raise IndexUnavailable(
                f"cannot write a temporary file to {folder}: {error.strerror}; free space "
                "there, or set TMPDIR"
            ) from error

    def _deal(self, file: IO[bytes]) -> None:
        entries = joined(self._pending)
        self._pending, self._pending_bytes = [], 0
        parts = self._route(entries)
        order = np.argsort(parts, kind="stable")
        parts, rows = parts[order], entries.rows[order]
        names = entries.names()
        starts = np.flatnonzero(np.append(True, parts[1:] != parts[:-1]))[: len(parts)]
        ends = np.append(starts[1:], len(parts))
        numbers = order.tolist()
        for part, start, end in zip(
            parts[starts].tolist(), starts.tolist(), ends.tolist(), strict=False
        ):
            heap = b"".join([names[number] for number in numbers[start:end]])
            self._extents[part].append((file.tell(), end - start, len(heap)))
            self._counts[part] += end - start
            file.write(rows[start:end].tobytes())
            file.write(heap)
