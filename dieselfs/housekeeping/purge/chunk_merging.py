"""The move of live files of chunks into new chunks, which are stored but not committed.

Files are read, verified and packed in their old order. So class mixing is kept: chunks that each
sample the whole source (packed by `scatter`) give chunks that do so too, and files that were packed
by path, or as a sample, stay together. Chunks are read some way ahead of the packing.
"""

from __future__ import annotations

import stat
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import xxhash

from chunkstore.chunk_format import ChunkHead, block_counts
from chunkstore.chunk_id import ChunkId
from chunkstore.chunk_reader import MAX_WHOLE_BYTES
from chunkstore.chunk_source import ChunkRef, FileExtent
from chunkstore.chunk_writer import BlockHashes, ChunkWriter, SealedChunk, Version
from chunkstore.errors import Corrupt, NotFound
from chunkstore.keep_together import KeepTogether
from chunkstore.object_keys import chunk_key
from chunkstore.uploader import Uploader
from dieselfs.dataset.dataset import Dataset
from dieselfs.dataset.dataset_writer import CHUNK_IDS
from dieselfs.housekeeping.purge.chunk_metadata import live_files
from dieselfs.housekeeping.purge.purge_request import DamagedChunk
from dieselfs.recovery.parallel_reads import read_in_parallel
from metadata.records import ChunkRecord

_AHEAD = 4
"""Chunks that are read while others are packed: 64 MiB at most."""

Positions = npt.NDArray[np.intp]


@dataclass(frozen=True, slots=True)
class SourceChunk:
    """A chunk to be emptied, with its record in the index."""

    id: ChunkId
    record: ChunkRecord

    @property
    def ref(self) -> ChunkRef:
        """The chunk with the lengths in its record."""
        return ChunkRef(self.id, self.record.head_bytes, self.record.payload_bytes)


@dataclass(frozen=True, slots=True)
class LoadedChunk:
    """The head of a source, and the content of its live files as far as it has been read."""

    source: SourceChunk
    head: ChunkHead
    positions: Positions
    contents: Sequence[memoryview] | None
    """None: the content is too large for memory and is read in parts."""


class Mover:
    """The writer of the new chunks.

    `close` stops the threads; stored chunks stay, uncommitted.
    """

    def __init__(
        self, dataset: Dataset, target_bytes: int, keep_together: KeepTogether = "none"
    ) -> None:
        self._dataset = dataset
        self.stored: list[SealedChunk] = []
        """Durable, uncommitted chunks in the order of their ids, without their payloads."""
        self._uploader = Uploader(dataset.store, dataset.ref.name, self._remember)
        self._writer = new_writer(dataset, self._uploader, target_bytes, keep_together)

    def read(self, sources: Sequence[SourceChunk]) -> Iterator[LoadedChunk | DamagedChunk]:
        """Yield the sources in order, each read and verified, or its damage."""

        def read(source: SourceChunk) -> LoadedChunk | DamagedChunk:
            try:
                return self._read(source)
            except (Corrupt, NotFound) as error:
                return DamagedChunk(source.id, str(error))

        with closing(read_in_parallel(read, sources, at_once=_AHEAD, ahead=_AHEAD - 1)) as chunks:
            for _, chunk in chunks:
                yield chunk

    def move(self, chunk: LoadedChunk) -> None:
        """Pack the live files of a chunk.

        Raises `Corrupt` or `NotFound` if a file of a large chunk cannot be read. The files packed
        before may stay: they replace the old ones.
        """
        if chunk.contents is not None:
            self._add(chunk, chunk.positions, chunk.contents)
            return
        for positions in _batches(chunk.head.entries.length, chunk.positions):
            self._add(chunk, positions, self._read_files(chunk.source.ref, chunk.head, positions))

    def finish(self) -> list[SealedChunk]:
        """Store the rest; return all new chunks."""
        self._writer.flush()
        self._uploader.wait()
        return self.stored

    def close(self) -> None:
        """Stop the threads of the uploader."""
        self._uploader.close()

    def _remember(self, chunk: SealedChunk) -> None:
        self.stored.append(SealedChunk(chunk.ref, chunk.head, (), chunk.file_count))

    def _read(self, source: SourceChunk) -> LoadedChunk:
        head = self._dataset.reader.head(source.id, source.record.head_bytes)
        ref = source.ref
        if (head.head_bytes, head.payload_bytes, len(head.entries)) != (
            ref.head_bytes,
            ref.payload_bytes,
            source.record.entry_count,
        ):
            raise Corrupt(f"the lengths of chunk {source.id} differ from those in the index")
        positions = live_files(head.entries, source.record)
        live_bytes = int(head.entries.length[positions].sum())
        if live_bytes > MAX_WHOLE_BYTES:
            contents = None
        elif 2 * live_bytes >= ref.payload_bytes and ref.payload_bytes <= MAX_WHOLE_BYTES:
            contents = self._from_whole(ref, head, positions)
        else:
            contents = self._read_files(ref, head, positions)
        return LoadedChunk(source, head, positions, contents)

    def _from_whole(self, ref: ChunkRef, head: ChunkHead, positions: Positions) -> list[memoryview]:
        """Read the files with one get, which is faster than many ranges where most bytes are live.

        Only live files are verified: a damaged dead file does not matter.
        """
        data = memoryview(self._dataset.store.get(chunk_key(self._dataset.ref.name, ref.id)))
        contents = []
        for offset, length, digest in _places(head, positions):
            start = ref.head_bytes + offset
            content = data[start : start + length]
            if len(content) != length or xxhash.xxh3_64_intdigest(content) != digest:
                raise Corrupt(
                    f"the checksum of the file at offset {offset} of chunk {ref.id} is wrong"
                )
            contents.append(content)
        return contents

    def _read_files(self, ref: ChunkRef, head: ChunkHead, positions: Positions) -> list[memoryview]:
        files = [FileExtent(ref, *place) for place in _places(head, positions)]
        return self._dataset.reader.read_many(files)

    def _add(
        self, chunk: LoadedChunk, positions: Positions, contents: Sequence[memoryview]
    ) -> None:
        entries = chunk.head.entries
        counts = block_counts(entries.length)
        first = np.cumsum(counts) - counts
        columns = (entries.hash, entries.mode, entries.mtime_ns, first, first + counts)
        rows = zip(
            positions.tolist(),
            contents,
            _versions(chunk, positions),
            *(column[positions].tolist() for column in columns),
            strict=True,
        )
        for at, content, version, digest, mode, mtime_ns, start, end in rows:
            if stat.S_ISLNK(mode):
                self._writer.add_link(entries.paths[at], content, mtime_ns, version)
                continue
            blocks = entries.block_hash[start:end].tolist() if end > start else []
            hashes = BlockHashes(digest, blocks)
            self._writer.add_file(entries.paths[at], content, mode, mtime_ns, hashes, version)


def new_writer(
    dataset: Dataset,
    uploader: Uploader,
    target_bytes: int,
    keep_together: KeepTogether = "none",
) -> ChunkWriter:
    """Return a writer with one open chunk, which keeps the order of the files."""
    return ChunkWriter(
        dataset.ref,
        CHUNK_IDS,
        uploader.submit,
        target_bytes=target_bytes,
        open_chunks=1,
        keep_together=keep_together,
    )


def _places(head: ChunkHead, positions: Positions) -> Iterator[tuple[int, int, int]]:
    """Return the offset, length and hash of each of these entries."""
    columns = (head.entries.offset, head.entries.length, head.entries.hash)
    return zip(*(column[positions].tolist() for column in columns), strict=True)


def _versions(chunk: LoadedChunk, positions: Positions) -> list[Version]:
    """Return the versions of the entries.

    They are carried ones, or those of the commit that added the chunk.
    """
    added, own = chunk.source.record.generation, chunk.source.id.value
    carried = chunk.head.entries.versions
    if carried is None:
        return [Version(added, own, at) for at in positions.tolist()]
    columns = (carried["generation"], carried["chunk"], carried["position"])
    rows = zip(positions.tolist(), *(c[positions].tolist() for c in columns), strict=True)
    return [
        Version(generation, where, position) if generation else Version(added, own, at)
        for at, generation, where, position in rows
    ]


def _batches(length: npt.NDArray[np.uint64], positions: Positions) -> Iterator[Positions]:
    """Yield parts of about 16 MiB, of at least one file."""
    if not len(positions):
        return
    part = np.cumsum(length[positions]) // np.uint64(MAX_WHOLE_BYTES)
    yield from np.split(positions, np.flatnonzero(np.diff(part)) + 1)
