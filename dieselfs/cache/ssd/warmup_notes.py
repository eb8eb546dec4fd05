"""The progress of warm-ups that run beside readers, as files on the SSD for `dlcmd cache ls -v`.

A warm-up writes `<tier>/warmup/<dataset id>.json`, and holds a claim while it runs. The kernel
frees the claim when its process ends. So a file that says *runs* and has no claim is of a process
that was killed.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Final

from chunkstore.chunk_format import DatasetRef

log = logging.getLogger(__name__)

RUNS: Final = "runs"


@dataclass(frozen=True, slots=True)
class WarmUpProgress:
    """The state of the warm-up of the chunks that are wanted now."""

    state: str = "begins"
    """begins, runs, done, no room, stopped; or `waits: ` and the reason."""
    chunks: int = 0
    bytes: int = 0
    cached_chunks: int = 0
    cached_bytes: int = 0
    """Bytes on the SSD, whichever process loaded them; each cached block of a chunk counts."""
    loaded_bytes: int = 0
    """Bytes that this process has loaded since it started."""
    failed: int = 0
    """Chunks that are damaged or missing in the store."""


@dataclass(frozen=True, slots=True)
class WarmUpNote:
    """The last progress that a warm-up of this node has written."""

    dataset: str
    progress: WarmUpProgress = field(default_factory=WarmUpProgress)


def claim_name(dataset: bytes) -> bytes:
    """Return the name that a process claims while it warms a dataset, given by its id."""
    return b"warm-up of " + dataset


def write_note(tier: Path, dataset: DatasetRef, progress: WarmUpProgress) -> None:
    """Write the progress; a disk that does not take it costs the note alone."""
    folder = tier / "warmup"
    temporary = folder / f".{os.urandom(8).hex()}"
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        temporary.write_text(json.dumps({"dataset": dataset.name, **asdict(progress)}))
        os.rename(temporary, folder / f"{dataset.id.hex()}.json")
    except OSError as error:
        log.debug("cannot note the progress of a warm-up: %s", error)


def read_notes(tier: Path) -> dict[bytes, WarmUpNote]:
    """Return the notes by the ids of their datasets; unreadable ones are left out."""
    found = {}
    try:
        names = os.listdir(tier / "warmup")
    except OSError:
        return {}
    for name in names:
        try:
            id_ = bytes.fromhex(Path(name).stem)
            found[id_] = _decoded(json.loads((tier / "warmup" / name).read_text()))
        except (OSError, ValueError, KeyError, TypeError):
            continue
    return found


def _decoded(data: Mapping[str, Any]) -> WarmUpNote:
    known = {of.name for of in fields(WarmUpProgress)}
    return WarmUpNote(
        str(data["dataset"]),
        WarmUpProgress(**{key: value for key, value in data.items() if key in known}),
    )
