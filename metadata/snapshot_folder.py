"""The local folder of snapshots: their names, and how a file appears there, whole or not at all.

A file is written under a temporary name, made durable, and renamed to
`<dataset>-<generation>-<hash>.snapshot`, a name that no other content has. So a mapped file is
never written to, and a file that has its final name needs no further check.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Final

SUFFIX: Final = ".snapshot"
INCOMPLETE: Final = ".incomplete-"
"""The prefix of the names of files that are being written, or whose writer was killed."""


def file_name(dataset_name: str, snapshot_id: str) -> str:
    """Return the name of a snapshot's file."""
    return f"{dataset_name}-{snapshot_id}{SUFFIX}"


@contextmanager
def publish(folder: Path) -> Iterator[tuple[IO[bytes], Callable[[str], Path]]]:
    """Yield a new file in `folder`, and the function that publishes it under a name.

    Until then the file has a temporary name, its `name`. The function makes the file durable and
    visible. Without that call the file is dropped. The folder is created, for its owner alone, if
    it does not exist.
    """
    import tempfile

    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor, temporary = tempfile.mkstemp(prefix=INCOMPLETE, dir=folder)

    def finish(name: str) -> Path:
        file.flush()
        os.fchmod(file.fileno(), 0o444)
        os.fsync(file.fileno())
        os.rename(temporary, folder / name)
        directory = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)
        return folder / name

    with open(temporary, "wb", opener=lambda *_: descriptor) as file:
        try:
            yield file, finish
        finally:
            _drop(Path(temporary))


def _drop(unfinished: Path) -> None:
    unfinished.unlink(missing_ok=True)
