"""A directory's live content as columns: what a scan of the index hands to the snapshot's builder, and `ls` to the user."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True, slots=True)
class DirectoryListing:
    """The live children of one directory, each kind sorted by name. No name is in both: a directory hides a file of its name."""

    path: bytes
    file_names: Sequence[bytes]
    files: npt.NDArray[np.void]
    """`metadata.records.ENTRY`, one for each file name."""
    directory_names: Sequence[bytes]
    directories: npt.NDArray[np.void]
    """`metadata.records.ENTRY`, one for each directory name."""
    hidden_files: int = 0
    """Files that stand in the index, and in the totals, under the name of a directory, so that nobody sees them."""
    hidden_bytes: int = 0
