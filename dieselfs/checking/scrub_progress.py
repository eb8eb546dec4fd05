"""The position of a scrub in a small file of the user's.

So Ctrl-C or SIGKILL costs no more than the last seconds. The file is one JSON object, put in place
by rename. If the file cannot be read, or is of another scrub, the scrub starts from the beginning.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import xxhash

from chunkstore.chunk_id import ChunkId, print_id
from chunkstore.chunk_source import ChunkRef
from dieselfs.checking.chunk_check import ChunkDamage
from dieselfs.checking.findings import FindingKind
from dieselfs.errors import Conflict

_log = logging.getLogger(__name__)
_VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class ScrubProgress:
    """A scrub that is under way."""

    generation: int
    """The last generation whose chunks the scrub reads, whatever is committed meanwhile."""
    sample: float | None
    """The share of chunks that it reads; None means all."""
    seed: int
    """The seed that selects them."""
    done: ChunkId | None = None
    """The last id up to which all chosen chunks have been read."""
    chunks: int = 0
    files: int = 0
    size_bytes: int = 0
    read_again: int = 0
    """The chunks that were damaged at the first reading and sound at the next."""
    damages: tuple[ChunkDamage, ...] = ()


class ScrubFile:
    """The file of one dataset in one store, below a folder that is created with mode 0700."""

    def __init__(self, folder: Path, dataset_id: bytes, place: str) -> None:
        """`place`: the store's URL, or any other text that distinguishes it from other stores."""
        where = xxhash.xxh3_64_hexdigest(place.encode())
        self.path = folder / f"{print_id(dataset_id)}-{where}.json"

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Allow one scrub at a time. Raises `Conflict` if another one runs."""
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = os.open(self.path.with_suffix(".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise Conflict(
                    "another scrub of this dataset is running", "wait until it ends, or stop it"
                ) from None
            yield
        finally:
            os.close(lock)

    def read(self) -> ScrubProgress | None:
        """Return the progress saved last; None if there is none that can be read."""
        try:
            return _decode(json.loads(self.path.read_bytes()))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError) as error:
            _log.warning(
                "cannot read %s (%s): the scrub starts from the beginning", self.path, error
            )
            return None

    def write(self, progress: ScrubProgress) -> None:
        """Replace what was saved. It is durable on return."""
        descriptor, temporary = tempfile.mkstemp(prefix=".incomplete-", dir=self.path.parent)
        try:
            with open(descriptor, "w", encoding="ascii") as file:  # mode 0600, from mkstemp
                json.dump(_encode(progress), file)
                file.flush()
                os.fsync(file.fileno())
            os.rename(temporary, self.path)
        except BaseException:
            os.unlink(temporary)
            raise

    def remove(self) -> None:
        """Delete the file if it exists."""
        self.path.unlink(missing_ok=True)


def _encode(progress: ScrubProgress) -> dict[str, Any]:
    return {
        "version": _VERSION,
        "generation": progress.generation,
        "sample": progress.sample,
        "seed": progress.seed,
        "done": str(progress.done) if progress.done else None,
        "chunks": progress.chunks,
        "files": progress.files,
        "bytes": progress.size_bytes,
        "read_again": progress.read_again,
        "damages": [
            {
                "chunk": str(damage.chunk.id),
                "head_bytes": damage.chunk.head_bytes,
                "payload_bytes": damage.chunk.payload_bytes,
                "kind": damage.kind.value,
                "what": damage.what,
                "contents": None if damage.contents is None else sorted(damage.contents),
            }
            for damage in progress.damages
        ],
    }


def _decode(record: dict[str, Any]) -> ScrubProgress:
    """Return the progress in a JSON object.

    Raises `ValueError`, `KeyError` or `TypeError` for anything that `_encode` does not produce.
    """
    if record["version"] != _VERSION:
        raise ValueError(f"version {record['version']}")
    sample = record["sample"]
    return ScrubProgress(
        int(record["generation"]),
        None if sample is None else float(sample),
        int(record["seed"]),
        ChunkId.parse(record["done"]) if record["done"] is not None else None,
        int(record["chunks"]),
        int(record["files"]),
        int(record["bytes"]),
        int(record["read_again"]),
        tuple(_decode_damage(damage) for damage in record["damages"]),
    )


def _decode_damage(record: dict[str, Any]) -> ChunkDamage:
    contents = record["contents"]
    return ChunkDamage(
        ChunkRef(
            ChunkId.parse(record["chunk"]), int(record["head_bytes"]), int(record["payload_bytes"])
        ),
        FindingKind(record["kind"]),
        str(record["what"]),
        None
        if contents is None
        else frozenset(
            (int(offset), int(length), int(hash_)) for offset, length, hash_ in contents
        ),
    )
