"""Two versions of one dataset, as snapshots of one store, for tests of mounts that are
refreshed."""

from dataclasses import dataclass
from pathlib import Path

from chunkstore.chunk_writer import DEFAULT_TARGET_BYTES
from chunkstore.stores.local_directory import LocalDirectory
from dieselfs.client import Client
from dieselfs.dataset.dataset_writer import DatasetWriter
from metadata.kv.memory import MemoryStore
from tests.mount.packing import BASE_TIME_NS, PackedDataset

Files = dict[str, bytes]
"""Paths with their bytes."""


@dataclass(frozen=True)
class Versions:
    before: PackedDataset
    after: PackedDataset
    files_before: Files
    files_after: Files


def pack_versions(
    before: Files, after: Files, folder: Path, target_bytes: int = DEFAULT_TARGET_BYTES
) -> Versions:
    """A dataset that held `before` and then `after`; of what it held before nothing else is
    left."""
    client = Client.connect(
        "sample",
        store=LocalDirectory(folder / "store"),
        index=MemoryStore(),
        create=True,
        snapshot_folder=folder / "snapshots",
        target_bytes=target_bytes,
    )
    with client:
        snapshots = []
        for number, files in enumerate((before, after)):
            _delete_all(client)
            for path, content in files.items():
                client.put(content, path, mtime_ns=BASE_TIME_NS + number)
            snapshots.append(client.save_meta())
    first, second = (
        PackedDataset(snapshot, folder / "store", Path("/nowhere")) for snapshot in snapshots
    )
    return Versions(first, second, before, after)


def _delete_all(client: Client) -> None:
    """Files of the root in one commit."""
    namespace = client.dataset.namespace
    listing = namespace.list(b"")
    for name in listing.directory_names:
        client.delete_tree(name)
    with DatasetWriter(client.dataset) as writer:
        for name in listing.file_names:
            writer.delete(namespace.stat(name))
