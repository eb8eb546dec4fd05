"""Real datasets for the tests of mounts: trees on disk, packed through the product's own writer."""

import os
import random
import stat
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from chunkstore.chunk_writer import DEFAULT_TARGET_BYTES
from chunkstore.stores.local_directory import LocalDirectory
from dieselfs.dataset.dataset import open_dataset
from dieselfs.dataset.dataset_writer import DatasetWriter
from dieselfs.snapshots import lifecycle
from metadata.kv.memory import MemoryStore

AN_HOUR_NS = 3_600_000_000_000
BASE_TIME_NS = 1_600_000_000_000_000_000


@dataclass(frozen=True)
class PackedDataset:
    """What a mount needs: no index, only a snapshot and the store."""

    snapshot: Path
    store: Path
    source: Path
    """The tree that was packed."""


def random_bytes(size: int, seed: int = 0) -> bytes:
    return random.Random(seed * 1_000_003 + size).randbytes(size)


def write_file(path: Path, content: bytes, mode: int = 0o644, mtime_ns: int | None = None) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    path.chmod(mode)
    when = BASE_TIME_NS + len(content) * 1001 if mtime_ns is None else mtime_ns
    os.utime(path, ns=(when, when))


def pack(
    source: Path, folder: Path, name: str = "sample", *, target_bytes: int = DEFAULT_TARGET_BYTES
) -> PackedDataset:
    """Pack all of `source` into a store in `folder`, and make its snapshot there.

    Symbolic links are kept.
    """

    def write(writer: DatasetWriter) -> None:
        for top, directories, files in os.walk(os.fsencode(source)):
            relative = os.path.relpath(top, os.fsencode(source))
            prefix = b"" if relative == b"." else relative + b"/"
            found = os.stat(top)
            writer.put_directory(
                prefix.rstrip(b"/"), stat.S_IMODE(found.st_mode), found.st_mtime_ns
            )
            for file in [*files, *directories]:
                path = os.path.join(top, file)
                if os.path.islink(path):
                    mtime_ns = os.lstat(path).st_mtime_ns
                    writer.put_link(prefix + file, os.readlink(path), mtime_ns)
            for file in files:
                path = os.path.join(top, file)
                if os.path.islink(path):
                    continue
                found = os.stat(path)
                with open(path, "rb") as reading:
                    content = reading.read()
                writer.put(prefix + file, content, stat.S_IMODE(found.st_mode), found.st_mtime_ns)

    return pack_written(write, folder, name, source=source, target_bytes=target_bytes)


def pack_written(
    write: Callable[[DatasetWriter], None],
    folder: Path,
    name: str = "sample",
    *,
    source: Path = Path("/nowhere"),
    target_bytes: int = DEFAULT_TARGET_BYTES,
) -> PackedDataset:
    """Pack what `write` puts: thousands of files cost more on the disk than in the store."""
    folder.mkdir(exist_ok=True)
    store = LocalDirectory(folder / "store")
    dataset = open_dataset(store, MemoryStore(), name, create=True)
    with DatasetWriter(dataset, target_bytes=target_bytes) as writer:
        write(writer)
    return PackedDataset(
        lifecycle.create(dataset, folder / "snapshots", publish=False), folder / "store", source
    )
