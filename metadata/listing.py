"""The live content of a directory as columns, for the snapshot builder and for `ls`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt


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
    hidden_files: int = 0
    """The files that readers cannot see, because a directory has the same name.

    They are current in the index and counted in its totals.
    """
    hidden_bytes: int = 0
