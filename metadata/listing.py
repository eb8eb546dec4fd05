"""The live content of a directory as columns, for the snapshot builder and for `ls`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from metadata.records import ENTRY


@dataclass(frozen=True, slots=True)
class DirectoryListing:
    """The live children of one directory, each kind sorted by name.

    No name is in both kinds: a directory hides a file of its name.
    """

    path: bytes
    file_names: Sequence[bytes]
    files: npt.NDArray[np.void]
    """`metadata.records.ENTRY`, one for each file name."""
    directory_names: Sequence[bytes]
    directories: npt.NDArray[np.void]
    """`metadata.records.ENTRY`, one for each directory name."""
    hidden_names: Sequence[bytes] = ()
    """The files that readers cannot see, because a directory has the same name.

    They are current in the index and counted in its totals.
    """
    hidden: npt.NDArray[np.void] = field(default_factory=lambda: np.zeros(0, ENTRY))
    """`metadata.records.ENTRY`, one for each hidden name."""

    @property
    def hidden_files(self) -> int:
        """The number of hidden files."""
        return len(self.hidden_names)

    @property
    def hidden_bytes(self) -> int:
        """The size of the hidden files."""
        return int(self.hidden["length"].sum())

    def all_files(self) -> Iterator[tuple[bytes, np.void]]:
        """Yield the name and the row of each file, hidden ones last."""
        yield from zip(self.file_names, self.files, strict=True)
        yield from zip(self.hidden_names, self.hidden, strict=True)
