"""A snapshot with chunks of given payloads and one file in each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from metadata.snapshot import Snapshot
from metadata.snapshot_builder import build_snapshot
from tests.metadata.snapshot_trees import DATASET, File, Tree, chunk_id


@contextmanager
def chunks_of(payloads: Sequence[int], folder: Path) -> Iterator[Snapshot]:
    files = {
        b"c/%03d" % number: File(number, 0, 0, payload) for number, payload in enumerate(payloads)
    }
    packed = Tree(files)
    chunks = {
        chunk_id(number): replace(packed.chunks[chunk_id(number)], payload_bytes=payload)
        for number, payload in enumerate(payloads)
    }
    folder.mkdir(exist_ok=True)
    state = replace(packed.state, chunks=len(chunks))
    built = build_snapshot(DATASET, state, None, packed.listings(), chunks, folder)
    with Snapshot.open(built) as snapshot:
        yield snapshot
