"""The samples of several files below a directory, as the inodes of their parts.

The files of a sample lie in one directory and have one name up to the first dot; what follows the
dot is the part (`chunkstore.keep_together`). A pass over the names takes some 1.5 µs a file, and
what is kept has 4 bytes for each sample and part.
"""

from __future__ import annotations

import os
from array import array
from collections.abc import Iterator, Sequence
from typing import Final, Literal

import numpy as np
import numpy.typing as npt

from chunkstore.keep_together import split_sample
from dieselfs.errors import UsageError
from dieselfs.shuffle.class_labels import NOT_READ, class_folder_labels
from metadata.snapshot import Snapshot

Missing = Literal["error", "skip"]

_AT_ONCE: Final = 65536
_NO_FILE: Final = 0xFFFFFFFF


def sample_parts(
    snapshot: Snapshot, parts: Sequence[str], under: str = "", missing: Missing = "error"
) -> npt.NDArray[np.uint32]:
    """Return the inodes of the parts: a row for each sample, a column for each of `parts`.

    Samples are sorted by directory and name. A sample has at least one of the parts; other files
    are no samples. One that lacks a part is a `UsageError`, or is left out with "skip". Symbolic
    links are no parts.
    """
    columns = _columns_of(parts)
    blank, rows, before = array("I", [_NO_FILE] * len(parts)), array("I"), None
    for path, inode in _files_below(snapshot, under):
        key, extension = split_sample(path)
        column = columns.get(extension)
        if column is None:
            continue
        if key != before:
            rows.extend(blank)
            before = key
        rows[column - len(parts)] = inode
    found = np.array(rows, np.uint32).reshape(-1, len(parts))
    if not len(found):
        raise UsageError(
            f"no file below {under or 'the root'} of {snapshot.dataset.name} is a part "
            f"{' or '.join(parts)}",
            "a part is what follows the first dot of a file's name",
        )
    lacking = (found == _NO_FILE).any(axis=1)
    if missing == "error" and lacking.any():
        raise _lacking(snapshot, parts, found, np.flatnonzero(lacking))
    return found[~lacking] if lacking.any() else found


def sample_key_of(snapshot: Snapshot, inode: int) -> str:
    """Return the key of the sample that a file belongs to."""
    return os.fsdecode(split_sample(snapshot.path_of(inode))[0])


def _columns_of(parts: Sequence[str]) -> dict[bytes, int]:
    if len(set(parts)) < max(len(parts), 1) or any(
        part.startswith(".") or not part for part in parts
    ):
        raise UsageError(
            f"{parts!r} are no parts of a sample",
            'name what follows the first dot, each once: parts=("jpg", "json")',
        )
    return {os.fsencode(part): number for number, part in enumerate(parts)}


def _files_below(snapshot: Snapshot, under: str) -> Iterator[tuple[bytes, int]]:
    """Yield the files below a directory by directory and name, so that a sample's are neighbours.

    The names of a sample have a beginning in common that ends with a dot, so no other name is
    between two of them.
    """
    labels, by_name = class_folder_labels(snapshot, under=under), snapshot.columns.by_name
    inodes = by_name[labels[by_name] != NOT_READ]
    for at in range(0, len(inodes), _AT_ONCE):
        some = inodes[at : at + _AT_ONCE]
        paths = snapshot.paths_text(some, b"\0").split(b"\0")[:-1]
        yield from zip(paths, some.tolist(), strict=True)


def _lacking(
    snapshot: Snapshot,
    parts: Sequence[str],
    found: npt.NDArray[np.uint32],
    lacking: npt.NDArray[np.intp],
) -> UsageError:
    row = found[lacking[0]]
    key = sample_key_of(snapshot, int(row[row != _NO_FILE][0]))
    absent = [part for part, inode in zip(parts, row.tolist(), strict=True) if inode == _NO_FILE]
    return UsageError(
        f"sample {key} has no {' and no '.join(absent)} ({len(lacking):,} of {len(found):,} "
        "samples lack a part)",
        'put what is missing, name fewer parts, or leave such samples out: missing="skip"',
    )
