"""`scrub`: the verification of every committed chunk as a whole, header, files and hash blocks.

Chunks are read in the order of ids, several at a time. Retired chunks that still exist are read
too: what a snapshot needs of them must be sound.

Threads do the work: reading and hashing of large data release the GIL. The rest, Python's own work
of about 1 µs a file and 1 ms a chunk of 4 MiB, is less than the time that a disk takes to deliver
it. The position of the scrub is kept in a file (`scrub_progress`), and a later run continues there;
what was committed after the scrub began is left to the next scrub.
"""

from __future__ import annotations

import math
import secrets
import time
from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import xxhash

from chunkstore.chunk_format import DatasetRef
from chunkstore.chunk_source import ChunkRef
from chunkstore.progress import NO_PROGRESS, Progress
from chunkstore.stores.byte_rate import ByteRate
from chunkstore.stores.object_store import ObjectStore
from dieselfs.checking.chunk_check import ChunkDamage, WholeCheck, check_whole
from dieselfs.checking.damaged_files import chunk_findings, files_by_heads
from dieselfs.checking.files_hit import indexed_files
from dieselfs.checking.findings import Finding, FindingKind, Verdict, verdict_of
from dieselfs.checking.head_checks import HeadChecks
from dieselfs.checking.scrub_progress import ScrubFile, ScrubProgress
from dieselfs.checking.snapshot_check import check_snapshots
from dieselfs.checking.store_check import ListedDataset, read_stored, retired_after
from dieselfs.recovery.parallel_reads import read_in_parallel
from metadata import keys
from metadata.dataset_state import read_state
from metadata.errors import RecordCorrupt
from metadata.kv.key_value_store import KeyValueStore

JOBS: Final = 4
_AHEAD: Final = 2
"""The chunks under way or waiting for their turn, for each job."""
_SAVED_EVERY_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class ChunkSample:
    """A choice of chunks: those that a seeded hash of their ids puts first."""

    share: float
    """The share of chunks, above 0 and at most 1."""
    seed: int | None = None
    """The seed of the hash.

    None means the seed of the resumed scrub, or else a new one, so that each run reads other
    chunks.
    """


@dataclass(frozen=True, slots=True)
class ScrubReport:
    """The extent and the findings of a scrub, including the runs that it resumes."""

    dataset: DatasetRef
    generation: int
    """The generation at the start; later commits have not been checked."""
    chunks: int
    """The chunks verified or found damaged."""
    chunks_there: int
    """The chunks committed and either not retired or still in the store.

    With a sample they are more than `chunks`.
    """
    files: int
    """The verified files, including deleted ones that still lie in chunks."""
    size_bytes: int
    seed: int | None
    """The seed of the sample."""
    resumed: bool
    read_again: int
    """The chunks that were damaged at the first reading and sound at the next.

    Memory, cables or network may be the cause.
    """
    findings: tuple[Finding, ...]

    @property
    def verdict(self) -> Verdict:
        """The result of the scrub."""
        return verdict_of(self.findings)


def scrub(
    store: ObjectStore,
    index: KeyValueStore,
    name: str,
    *,
    rate_bytes_per_s: float | None = None,
    sample: ChunkSample | None = None,
    jobs: int = JOBS,
    progress_folder: Path | None = None,
    place: str = "",
    restart: bool = False,
    snapshot_folder: Path | None = None,
    progress: Progress = NO_PROGRESS,
) -> ScrubReport:
    """Read and verify the chunks of dataset `name`; changes nothing.

    `progress_folder` keeps the position of the scrub, for this dataset in this `place` (the store's
    URL); with None it is not kept. `restart` begins from the start, whatever is kept. `index` and
    `snapshot_folder` serve to name the files that damage hits. `progress` expects the bytes to read
    in all, and advances by the files and bytes of each chunk, first by all that an earlier run has
    read.

    Memory: 2 · `jobs` results, `jobs` chunks. Raises `DatasetNotFound`; `Conflict` if another scrub
    of the dataset runs; `Unavailable` or `Denied`, after which, as after Ctrl-C, a later run
    continues where this one stopped.
    """
    stored = read_stored(store, name)
    with ExitStack() as scope:
        file = None
        if progress_folder is not None:
            file = ScrubFile(progress_folder, stored.dataset.id, place)
            scope.enter_context(file.locked())
        kept = file.read() if file is not None and not restart else None
        begin = _resumed(kept, sample, stored)
        resumed = begin is not None
        begin = begin or _new_progress(sample, stored)
        existing = _existing_chunks(stored, begin.generation)
        chosen = _chosen(existing, begin)
        progress.expect(
            0, begin.size_bytes + sum(chunk.object_bytes for chunk in _left(chosen, begin))
        )
        progress.advance(begin.files, begin.size_bytes)
        rate = ByteRate(rate_bytes_per_s)
        end = _read_all(store, stored, _left(chosen, begin), begin, rate, jobs, file, progress)
        findings = _findings(store, index, stored, end.damages, snapshot_folder)
        if file is not None:
            file.remove()
    return ScrubReport(
        stored.dataset,
        end.generation,
        end.chunks,
        len(existing),
        end.files,
        end.size_bytes,
        None if sample is None else end.seed,
        resumed,
        end.read_again,
        tuple(findings),
    )


def _resumed(
    kept: ScrubProgress | None, sample: ChunkSample | None, stored: ListedDataset
) -> ScrubProgress | None:
    """Return the kept progress if it belongs to the requested scrub, else None."""
    if kept is None or kept.generation > stored.newest:
        return None
    if kept.sample != (None if sample is None else sample.share):
        return None
    if sample is not None and sample.seed not in (None, kept.seed):
        return None
    return kept


def _new_progress(sample: ChunkSample | None, stored: ListedDataset) -> ScrubProgress:
    if sample is None:
        return ScrubProgress(stored.newest, None, 0)
    seed = secrets.randbits(32) if sample.seed is None else sample.seed
    return ScrubProgress(stored.newest, sample.share, seed)


def _existing_chunks(stored: ListedDataset, generation: int) -> list[ChunkRef]:
    """Return the chunks that must exist, and the retired ones that still do.

    Snapshots may need the retired ones.
    """
    required, added = stored.required(), stored.added(generation)
    return [added[i] for i in sorted(added) if i in required or i in stored.sizes]


def _chosen(chunks: Sequence[ChunkRef], scrub: ScrubProgress) -> list[ChunkRef]:
    """Return the chunks to read, in the order of ids.

    For a sample they are the ceil(share · n) chunks with the smallest xxh3_64(id, seed).
    """
    if scrub.sample is None:
        return list(chunks)
    count = math.ceil(round(len(chunks) * scrub.sample, 6))
    ranked = sorted(
        chunks, key=lambda chunk: xxhash.xxh3_64_intdigest(chunk.id.value, seed=scrub.seed)
    )
    return sorted(ranked[:count], key=lambda chunk: chunk.id)


def _left(chosen: Sequence[ChunkRef], scrub: ScrubProgress) -> list[ChunkRef]:
    return [chunk for chunk in chosen if scrub.done is None or chunk.id > scrub.done]


def _read_all(
    store: ObjectStore,
    stored: ListedDataset,
    chunks: Sequence[ChunkRef],
    begin: ScrubProgress,
    rate: ByteRate,
    jobs: int,
    file: ScrubFile | None,
    progress: Progress,
) -> ScrubProgress:
    """Read `chunks`; save the position from time to time, and when it is stopped."""
    state = begin

    def check(chunk: ChunkRef) -> WholeCheck:
        return check_whole(store, stored.dataset, chunk, stored.sizes.get(chunk.id), rate.take)

    saved = time.monotonic()
    try:
        ahead = _AHEAD * jobs - 1
        with (
            closing(read_in_parallel(check, chunks, at_once=jobs, ahead=ahead)) as results,
            closing(rate),
        ):
            for chunk, result in results:
                state = _after(state, chunk, result)
                progress.advance(result.files, result.size_bytes)
                if file is not None and time.monotonic() - saved > _SAVED_EVERY_S:
                    file.write(state)
                    saved = time.monotonic()
    except BaseException:
        if file is not None:
            file.write(state)
        raise
    return state


def _after(state: ScrubProgress, chunk: ChunkRef, result: WholeCheck) -> ScrubProgress:
    damages = state.damages
    if result.damage is not None:
        damages = (*damages, result.damage)
    return replace(
        state,
        done=chunk.id,
        chunks=state.chunks + 1,
        files=state.files + result.files,
        size_bytes=state.size_bytes + result.size_bytes,
        read_again=state.read_again + result.read_again,
        damages=damages,
    )


def _findings(
    store: ObjectStore,
    index: KeyValueStore,
    stored: ListedDataset,
    found: Sequence[ChunkDamage],
    snapshot_folder: Path | None,
) -> list[Finding]:
    damages = {damage.chunk.id: damage for damage in found}
    required = stored.required()
    if damages:
        for chunk_id in retired_after(store, stored.dataset, stored.newest):
            required.pop(chunk_id, None)
    for chunk_id in damages.keys() - required.keys():
        if (
            damages[chunk_id].kind is FindingKind.CHUNK_MISSING
        ):  # deleted meanwhile, which is allowed
            del damages[chunk_id]
    if not damages:
        return []
    if _is_current(index, stored):
        known = indexed_files(index, stored.dataset, damages)
        files = dict(known.by_chunk)
        sound = not known.damaged_records
    else:
        sound = False
    if not sound:
        heads = HeadChecks(store, stored.dataset, stored.sizes)
        heads.read_rest(damage.chunk for damage in damages.values())
        files = files_by_heads(store, index, stored, damages, heads, snapshot_folder)
    snapshots = check_snapshots(store, stored, damages, None)
    wanted = {i: damages[i] for i in damages if i in required or i in snapshots.hits}
    return chunk_findings(stored.dataset.name, wanted, files, snapshots.hits)


def _is_current(index: KeyValueStore, stored: ListedDataset) -> bool:
    """Return whether the index has applied all that the store holds and is not applying more."""
    try:
        states = [
            read_state(index, stored.dataset.id, field) for field in (keys.APPLIED, keys.TOTALS)
        ]
    except RecordCorrupt:
        return False
    return states[0] == states[1] and states[0].generation >= stored.newest
