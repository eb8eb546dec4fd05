"""What a dataset must still be after a fault: everything acknowledged, nothing half, and an index
that recovery would build as it is."""

from __future__ import annotations

import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from dieselfs.assembly import open_index, open_store
from dieselfs.dataset.dataset import Dataset, open_dataset
from dieselfs.snapshots import lifecycle
from metadata.rebuild import rebuild
from metadata.rebuild.compared_index import ComparedIndex
from metadata.rebuild.index_difference import IndexDifference
from metadata.snapshot import Snapshot
from tests.dieselfs.dataset_content import content_of

Files = Mapping[bytes, bytes]


def index_differences(dataset: Dataset) -> list[IndexDifference]:
    """What in the index is not what the store says."""
    compared = ComparedIndex(dataset.index)
    commits = list(dataset.log.since(0))
    rebuild(
        dataset.ref,
        commits,
        lambda ref: dataset.reader.head(ref.id, ref.head_bytes),
        compared,
    )
    return compared.differences


def files_of(dataset: Dataset) -> dict[bytes, bytes]:
    """Every visible file, read and verified."""
    return {path: node.data for path, node in content_of(dataset).items() if node.data is not None}


def links_of(dataset: Dataset) -> set[bytes]:
    """The paths of the symbolic links."""
    return {path for path, node in content_of(dataset).items() if stat.S_ISLNK(node.mode)}


@dataclass(frozen=True, slots=True)
class Places:
    """Where a dataset is."""

    store: str
    index: str
    name: str = "d"

    @property
    def flags(self) -> list[str]:
        return ["--store", self.store, "--index", self.index]

    @contextmanager
    def opened(self) -> Iterator[Dataset]:
        """As the next command would."""
        index = open_index(self.index)
        try:
            yield open_dataset(open_store(self.store), index, self.name)
        finally:
            index.close()


def check_kept(
    dataset: Dataset, acknowledged: Files, under_way: Files, told: int, folder: Path
) -> dict[bytes, bytes]:
    """A put of `under_way` on top of `acknowledged` ended anywhere, after it had told of `told`
    files; what is visible now."""
    found = files_of(dataset)
    for path, data in found.items():
        assert data in (acknowledged.get(path), under_way.get(path)), path
    assert found.keys() >= acknowledged.keys()
    assert sum(found.get(path) == data for path, data in under_way.items()) >= told
    assert index_differences(dataset) == []
    snapshot = Snapshot.open(lifecycle.build(dataset, folder))
    assert snapshot.header.files == len(found)
    snapshot.close()
    return found
