"""The part of a dataset that `dlcmd warmup` is for: a path, a list of names, or an epoch."""

from __future__ import annotations

import os
from dataclasses import dataclass
from shlex import quote
from typing import TYPE_CHECKING, BinaryIO

from dieselfs.cli.arguments.listed_names import listed_names
from dieselfs.dataset.address import DatasetAddress
from dieselfs.errors import UsageError

if TYPE_CHECKING:
    from chunkstore.chunk_source import ChunkRef
    from dieselfs.shuffle.order import ShuffleParameters
    from metadata.snapshot import Snapshot


@dataclass(frozen=True, slots=True)
class Selection:
    """The selection to warm; all of the dataset if nothing is given."""

    path: str
    """A file or directory, below which the names of the list lie; empty: the root."""
    files_from: BinaryIO | None
    null: bool
    """True if the names of the list end with NUL."""
    order: ShuffleParameters | None

    @classmethod
    def parse(
        cls, place: DatasetAddress, files_from: BinaryIO | None, shuffle: str | None, *, null: bool
    ) -> Selection:
        """Return the selection that flags and address name; raise `UsageError`."""
        if null and files_from is None:
            raise UsageError("--null is about the names of --files-from", "add --files-from FILE")
        if shuffle is None:
            return cls(place.path, files_from, null, None)
        if place.path or files_from is not None:
            raise UsageError(
                "--shuffle is the order of a whole dataset",
                f"write {place.dataset} without a path, and no --files-from",
            )
        from dieselfs.shuffle.order import parse_parameters

        try:
            return cls(place.path, files_from, null, parse_parameters(shuffle))
        except ValueError as error:
            raise UsageError(f"--shuffle {error}") from error

    @property
    def is_part(self) -> bool:
        """True unless all of the dataset is selected, in any order."""
        return bool(self.path) or self.files_from is not None or self.order is not None

    def chunks(self, snapshot: Snapshot) -> list[ChunkRef]:
        """Return the chunks in the order in which they are loaded.

        Raises `PathNotFound`, and `UsageError` for a selection without a file.
        """
        from dieselfs.cache.warmup.wanted_chunks import (
            chunks_of_order,
            chunks_of_paths,
            wanted_chunks,
        )

        if self.order is not None:
            return chunks_of_order(snapshot, self.order)
        if self.files_from is not None:
            found = chunks_of_paths(snapshot, self._names())
        elif self.path:
            found = chunks_of_paths(snapshot, [self.path])
        else:
            return wanted_chunks(snapshot)
        if not found:
            raise UsageError(
                "the selection has no files, so there is nothing to load",
                f"see `dlcmd ls -r {quote(str(DatasetAddress(snapshot.dataset.name, self.path)))}`",
            )
        return found

    def flags(self) -> list[str]:
        """Return the flags for another process that selects the same; raise `UsageError`."""
        if self.order is not None:
            return ["--shuffle", str(self.order)]
        if self.files_from is None:
            return []
        name = getattr(self.files_from, "name", None)
        if not isinstance(name, str) or not os.path.isfile(name):
            raise UsageError(
                "--background cannot read the names from standard input",
                "write them into a file, and name it with --files-from",
            )
        return [*["--null"] * self.null, "--files-from", os.path.abspath(name)]

    def _names(self) -> list[bytes]:
        assert self.files_from is not None
        names = listed_names(self.files_from, null=self.null)
        below = os.fsencode(self.path) + b"/" if self.path else b""
        return [below + name.removeprefix(b"./") for name in names if name.strip()]
