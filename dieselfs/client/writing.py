"""Puts and deletes of one client: packed in the background, durable and visible after a flush."""

from __future__ import annotations

import os
from dataclasses import dataclass
from operator import index
from typing import BinaryIO, get_args

from chunkstore.chunk_writer import DEFAULT_OPEN_CHUNKS, MAX_CHUNK_BYTES, MIN_CHUNK_BYTES
from chunkstore.keep_together import KeepTogether
from chunkstore.packing_settings import Order, PackingSettings
from chunkstore.stores.object_store import Buffer
from dieselfs.client.path_arguments import decoded
from dieselfs.dataset.dataset import Dataset
from dieselfs.dataset.dataset_writer import DatasetWriter
from dieselfs.dataset.file_stat import joined
from dieselfs.dataset.packing_choice import PackingChoice, packing_settings
from dieselfs.dataset.unchanged_reads import read_unchanged
from dieselfs.errors import Refused, UsageError
from metadata.errors import PathConflict
from metadata.namespace import PathEntry


@dataclass(frozen=True, slots=True)
class WriterOptions:
    """How a client packs; None for what the dataset remembers."""

    target_bytes: int | None = None
    open_chunks: int | None = None
    keep_together: KeepTogether | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        """Raise `UsageError` for settings with which nothing could be packed."""
        size, chunks, kept = self.target_bytes, self.open_chunks, self.keep_together
        if size is not None and not MIN_CHUNK_BYTES <= index(size) <= MAX_CHUNK_BYTES:
            raise UsageError(
                f"target_bytes={size}: a chunk has 4 KiB to 1 GiB", "4 << 20 suits most"
            )
        if chunks is not None and (chunks < 1 or chunks & (chunks - 1)):
            raise UsageError(f"open_chunks={chunks} is not a power of two", "64 suits most")
        if kept not in (None, *get_args(KeepTogether)):
            raise UsageError(
                f"keep_together={kept!r}", f"write one of {', '.join(get_args(KeepTogether))}"
            )

    @property
    def choice(self) -> PackingChoice:
        """The packing settings among them: with one open chunk files keep the order of the puts."""
        order: Order | None = None
        if self.open_chunks is not None:
            order = "given" if self.open_chunks == 1 else "scatter"
        return PackingChoice(self.target_bytes, order, self.keep_together)


class Writing:
    """The changes of one client. For one thread at a time; paths are encoded."""

    def __init__(self, dataset: Dataset, given: WriterOptions) -> None:
        """Create it. Nothing begins before the first change."""
        self._dataset, self._given = dataset, given
        self._unusable: Refused | None = None
        """The error of the packing settings, which deletions do not need."""
        self._writer: DatasetWriter | None = None

    def put(
        self,
        data: Buffer | BinaryIO | os.PathLike[str],
        path: bytes,
        mode: int | None,
        mtime_ns: int | None,
    ) -> None:
        """See `Client.put`."""
        if not isinstance(data, bytes):
            if isinstance(data, os.PathLike):
                data, status = read_unchanged(data)
                mode = status.st_mode & 0o7777 if mode is None else mode
                mtime_ns = status.st_mtime_ns if mtime_ns is None else mtime_ns
            else:
                data = _bytes_of(data)
        writer = self._writer or self.writer()
        if self._unusable is not None:
            raise self._unusable
        writer.put(path, data, 0o644 if mode is None else mode, mtime_ns)

    def flush(self) -> int:
        """Make all changes durable, committed and indexed; return the generation reached."""
        if self._writer is None:
            return self._dataset.namespace.state().generation
        return self._writer.flush()

    def delete(self, path: bytes) -> None:
        """See `Client.delete`."""
        writer, applied = self._flushed()
        entry = self._dataset.namespace.stat(path)
        if not entry.is_directory:
            writer.delete(entry)
            return
        listing = self._dataset.namespace.list(path)
        if not path or listing.file_names or listing.directory_names:
            raise PathConflict(
                f"directory {decoded(path) or '/'} is not empty: delete it with all below it"
            )
        writer.delete(entry, applied)

    def delete_tree(self, path: bytes) -> int:
        """See `Client.delete_tree`."""
        writer, applied = self._flushed()
        top = self._dataset.namespace.stat(path)
        if not top.is_directory:
            writer.delete(top)
            return 1
        count = 0
        for listing in self._dataset.namespace.walk(path):
            for name, row in listing.all_files():
                writer.delete(PathEntry(joined(listing.path, name), row))
            for name, row in zip(listing.directory_names, listing.directories, strict=True):
                writer.delete(PathEntry(joined(listing.path, name), row), applied)
            count += len(listing.file_names)
        if path:
            writer.delete(top, applied)
        return count

    def writer(self) -> DatasetWriter:
        """Return the writer, started if there is none."""
        if self._writer is None:
            given = self._given
            try:
                settings = packing_settings(self._dataset, given.choice)
            except Refused as error:
                self._unusable, settings = error, PackingSettings()
            scattered = DEFAULT_OPEN_CHUNKS if settings.order == "scatter" else 1
            self._writer = DatasetWriter(
                self._dataset,
                target_bytes=settings.target_bytes,
                open_chunks=given.open_chunks or scattered,
                seed=given.seed,
                keep_together=settings.keep_together,
            )
        return self._writer

    def close(self) -> None:
        """Flush and end; a later change starts again."""
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.close()

    def stop(self) -> None:
        """End without flushing."""
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.__exit__(RuntimeError, RuntimeError(), None)

    def _flushed(self) -> tuple[DatasetWriter, int]:
        """Return the writer, flushed, and the generation that the index has applied."""
        writer = self.writer()
        writer.flush()
        return writer, self._dataset.namespace.state().generation


def _bytes_of(data: Buffer | BinaryIO) -> Buffer:
    """Return the data that `put` was given as one contiguous buffer of bytes."""
    if isinstance(data, memoryview):
        is_plain = data.itemsize == 1 and data.ndim == 1 and data.contiguous
        return data if is_plain else data.tobytes()
    if isinstance(data, bytes | bytearray):
        return data
    if not hasattr(data, "read"):
        raise UsageError(
            f"put takes bytes, an open binary file or a pathlib.Path, not {type(data).__name__}",
            "write pathlib.Path(name) for a local file, or text.encode() for text",
        )
    content = data.read()
    if not isinstance(content, bytes):
        raise UsageError("a file object that is put must be open in binary mode")
    return content
