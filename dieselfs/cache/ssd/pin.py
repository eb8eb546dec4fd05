"""A dataset's pinned mount on an SSD: its blob, read through the tier, within the tier's size.

A blob counts against `--ssd-size`: the pinned mounts, with what the tier's chunks take when the
write of the blob starts, must not exceed it. Reads for a blob insert no further chunks into the
tier, which would then be there twice.
"""

from __future__ import annotations

from chunkstore.chunk_reader import ChunkReader
from chunkstore.chunk_source import ChunkRef, FileExtent
from chunkstore.progress import NO_PROGRESS, Advance
from chunkstore.ssd.tiered_store import TieredStore, blocks_of
from chunkstore.stores.object_store import ObjectReader, ObjectStore
from dieselfs.cache.ssd.blob import JOBS, BlobReport, find_blob, pinned_mounts, write_blob
from dieselfs.cache.ssd.byte_sizes import human_size
from dieselfs.cache.ssd.settings import SsdSettings, shared_tier
from dieselfs.cache.ssd.usage import TierAccess
from dieselfs.errors import Refused
from dieselfs.snapshots.expected_files import ExpectedFiles
from metadata.blob_layout import BlobLayout
from metadata.snapshot import Snapshot


class UnkeptChunks:
    """A `ChunkSource` that inserts no chunks into the tier.

    It reads from the tier the chunks that are cached there completely, and the others from the
    store.
    """

    def __init__(self, snapshot: Snapshot, store: ObjectStore, tier: ObjectReader) -> None:
        """`tier` is the same store behind its tier; the store itself if there is none."""
        expected = ExpectedFiles(snapshot)
        self._tier = tier if isinstance(tier, TieredStore) else None
        self._from_tier = ChunkReader(tier, snapshot.dataset, expected)
        self._from_store = ChunkReader(store, snapshot.dataset, expected)

    def payload(self, chunk: ChunkRef) -> memoryview:
        """Return a chunk's verified payload, from the tier or the store."""
        return self._reader(chunk).payload(chunk)

    def read(self, file: FileExtent, start: int, length: int) -> memoryview:
        """Return verified bytes of a file, from the tier or the store."""
        return self._reader(file.chunk).read(file, start, length)

    def _reader(self, chunk: ChunkRef) -> ChunkReader:
        blocks = blocks_of(chunk.id, chunk.object_bytes)
        tier = self._tier
        is_there = tier is not None and all(tier.holds(block) for block in blocks)
        return self._from_tier if is_there else self._from_store


def pin_mount(
    snapshot: Snapshot,
    store: ObjectStore,
    settings: SsdSettings,
    advance: Advance = NO_PROGRESS.advance,
    *,
    jobs: int = JOBS,
) -> BlobReport:
    """Write a snapshot's blob into a tier's folder.

    Raises `Refused` if it exceeds the tier's size, and the errors of `write_blob`.
    """
    Snapshot.verify(snapshot.path)
    if find_blob(settings.folder, snapshot) is None:
        require_size(snapshot, settings)
    tiered = TieredStore(store, snapshot.dataset, shared_tier(settings))
    source = UnkeptChunks(snapshot, store, tiered)
    return write_blob(snapshot, source, settings.folder, advance, jobs=jobs)


def require_size(snapshot: Snapshot, settings: SsdSettings) -> None:
    """Raise `Refused` unless a snapshot's blob fits the tier's size, or `SsdUnavailable`.

    Other pinned mounts and the cached chunks take their part of the size.
    """
    usage = TierAccess(settings).usage()
    layout = BlobLayout.of(snapshot)
    needed = sum(layout.device_bytes(device) for device in range(layout.device_count))
    pinned = sum(
        of.bytes for of in pinned_mounts(settings.folder) if of.snapshot != str(snapshot.id)
    )
    if needed + pinned + usage.used_bytes > usage.budget_bytes:
        raise Refused(
            f"the blob of {snapshot.dataset.name} needs {human_size(needed)}, but chunks take "
            f"{human_size(usage.used_bytes)} and other pinned mounts {human_size(pinned)} of "
            f"the {human_size(usage.budget_bytes)} of the SSD tier {settings.folder}",
            "give the tier more with --ssd-size, or evict chunks: dlcmd cache evict "
            f"{snapshot.dataset.name}",
        )
