"""A dataset of class folders in many small chunks; what is in a file begins with its path."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from chunkstore.keep_together import KeepTogether
from chunkstore.stores.local_directory import LocalDirectory
from dieselfs.client import Client
from metadata.kv.memory import MemoryStore
from metadata.snapshot import Snapshot
from tests.dieselfs.integrations.users_mount import mounted_by_dlcmd

SPLITS = ("train", "val")
CLASSES = ("ant", "bee", "bee-eater", "cat", "dog")
FILES_A_CLASS = 100
PATHS = [
    f"{split}/{name}/{'sub/' * (number % 9 == 0)}{number:03}.bin"
    for split in SPLITS
    for name in CLASSES
    for number in range(FILES_A_CLASS // (1 if split == "train" else 10))
]


def content(path: str) -> bytes:
    return path.encode().ljust(300, b".")


def name_in(data: bytes) -> str:
    """Loads a sample. Here, where a spawned worker finds it without the tests' own imports."""
    return data.rstrip(b".").decode()


def keep(batch: list[Any]) -> list[Any]:
    """Collates nothing."""
    return batch


@dataclass(frozen=True)
class MadeDataset:
    folder: Path
    snapshot_file: Path
    paths: list[str]

    @property
    def snapshot(self) -> Snapshot:
        return Snapshot.open(self.snapshot_file)

    def client(self) -> Client:
        return Client.connect(
            "pets",
            store=LocalDirectory(self.folder / "store"),
            index=MemoryStore(),
            snapshot_folder=self.folder / "snapshots",
        )


def make(
    folder: Path,
    paths: list[str],
    content: Callable[[str], bytes] = content,
    keep_together: KeepTogether = "none",
) -> MadeDataset:
    (folder / "store").mkdir(parents=True)
    with Client.connect(
        "pets",
        store=LocalDirectory(folder / "store"),
        index=MemoryStore(),
        snapshot_folder=folder / "snapshots",
        create=True,
        target_bytes=4096,
        open_chunks=4,
        keep_together=keep_together,
    ) as client:
        for path in paths:
            client.put(content(path), path)
        return MadeDataset(folder, client.save_meta(), paths)


@pytest.fixture(scope="session")
def pets(tmp_path_factory: pytest.TempPathFactory) -> MadeDataset:
    made = make(tmp_path_factory.mktemp("pets"), PATHS)
    with made.snapshot as snapshot:
        assert snapshot.chunk_count > 10  # or no test of chunk-wise order says anything
    return made


@pytest.fixture
def memory_folder() -> Iterator[Path]:
    """For the folders of tasks: `tmp_path` may be too long for a socket's path."""
    with TemporaryDirectory(prefix="dieselfs-test-") as folder:
        yield Path(folder)


@pytest.fixture(scope="module")
def pets_mount(pets: MadeDataset, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with (
        TemporaryDirectory(prefix="dieselfs-test-") as memory,
        pytest.MonkeyPatch.context() as monkeypatch,
    ):
        folder = tmp_path_factory.mktemp("pets_mount")
        yield from mounted_by_dlcmd(pets, folder, Path(memory), monkeypatch)
