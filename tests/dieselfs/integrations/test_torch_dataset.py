"""The dataset through the client, beside ImageFolder on a copy of the same tree."""

import os
import pickle
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch.utils.data import DataLoader, Subset

from chunkstore.stores.memory import MemoryObjectStore
from dieselfs.allocation.readers.allocation_settings import AllocationSettings
from dieselfs.allocation.readers.job_progress_meter import stored_bytes
from dieselfs.cache.node.task_folder import TaskFolder
from dieselfs.cache.task.node_memory import NodeMemory
from dieselfs.client import Client
from dieselfs.errors import PlanTooLarge, UsageError
from dieselfs.integrations.image_files import decode_image
from dieselfs.integrations.torch_dataset import DieselDataset
from dieselfs.integrations.torch_loader import ChunkShuffleLoader
from dieselfs.integrations.torch_sampler import ChunkShuffleSampler
from dieselfs.prefetch.plan_file import open_plan
from metadata.kv.memory import MemoryStore
from tests.dieselfs.integrations.conftest import CLASSES, MadeDataset, content, keep, name_in
from tests.eventually import eventually

Make = Callable[..., DieselDataset]


@pytest.fixture
def dataset_of(pets: MadeDataset, memory_folder: Path) -> Iterator[Make]:
    """Datasets that share a node's memory, kept by a helper process."""
    with pets.client() as client:
        reader = client.dataset.reader
    folder = TaskFolder.at("pets", memory_folder)
    with NodeMemory.open(folder, reader, budget_bytes=64 << 20, linger_s=0.1) as memory:

        def make(under: str = "train", **options: Any) -> DieselDataset:
            return DieselDataset(pets.client, under, loader=name_in, memory=memory, **options)

        yield make
    # The helper takes the folder with it.
    eventually(lambda: not folder.path.exists(), "end of the helper")


def test_equals_what_torchvision_lists(pets: MadeDataset, dataset_of: Make, tmp_path: Path) -> None:
    from torchvision.datasets import DatasetFolder  # half as long to import as torch itself

    for path in pets.paths:
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_bytes(content(path))
    listed = DatasetFolder(
        os.fspath(tmp_path / "train"), lambda path: path[len(str(tmp_path)) + 1 :], (".bin",)
    )
    ours = dataset_of()
    assert [ours[index] for index in range(len(ours))] == [
        listed[index] for index in range(len(listed))
    ]
    assert ours.classes == listed.classes == list(CLASSES)
    assert ours.class_to_idx == listed.class_to_idx
    assert ours.targets.tolist() == listed.targets
    assert len(ours) == len(listed) == 500
    assert [ours.path(index) for index in (0, 499)] == [listed[0][0], listed[499][0]]


def test_whole_batches_and_transforms(dataset_of: Make) -> None:
    ours = dataset_of(transform=str.upper, target_transform=lambda target: -target)
    assert ours.__getitems__([3, 400]) == [ours[3], ours[400]]
    assert ours[400] == (ours.path(400).upper(), -int(ours.targets[400]))
    with pytest.raises(IndexError):
        ours[500]


def test_nothing_per_file_but_columns(dataset_of: Make) -> None:
    ours = dataset_of()
    assert ours.inodes.dtype == np.uint32
    assert not [
        name
        for name, value in vars(ours).items()
        if isinstance(value, list | dict) and len(value) > 5
    ]


def test_classes_are_the_folders_of_a_directory(dataset_of: Make) -> None:
    assert dataset_of("").classes == ["train", "val"]
    assert len(dataset_of("/val/")) == 50
    assert len(dataset_of("val", extensions=(".BIN", ".jpg"))) == 50
    assert len(dataset_of("val", extensions=(".jpg",))) == 0
    assert len(dataset_of("val", extensions="bin")) == 50
    assert len(dataset_of("val", extensions=".min")) == 0
    with pytest.raises(UsageError, match="no such directory"):
        dataset_of("test")
    with pytest.raises(UsageError, match="no folders"):
        dataset_of("val/ant/sub")


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_workers(dataset_of: Make, method: str) -> None:
    """After the parent itself has read, so that a fork inherits a cache and its lock."""
    ours = dataset_of()
    assert ours[0][0] == ours.path(0)
    sampler = ChunkShuffleSampler(ours, seed=1, group_size=3)
    options: dict[str, Any] = {
        "num_workers": 1 if method == "spawn" else 2,  # each imports torch
        "multiprocessing_context": method,
        "collate_fn": keep,
    }
    loader = ChunkShuffleLoader(ours, 60, sampler=sampler, **options)
    found: list[Any] = []
    for number, batch in enumerate(loader, 1):
        found += batch
        if number == 4:
            break
    resumed = ChunkShuffleSampler(ours, group_size=3)
    resumed.load_state_dict(loader.state_dict())
    for batch in DataLoader(ours, 77, sampler=resumed, collate_fn=keep):
        found += batch
    order = list(ChunkShuffleSampler(ours, seed=1, group_size=3))
    assert found == [(ours.path(index), int(ours.targets[index])) for index in order]


def test_order_of_its_files_alone(pets: MadeDataset, dataset_of: Make) -> None:
    ours = dataset_of("val")
    by_path = ChunkShuffleSampler(
        [ours.path(index) for index in range(len(ours))], snapshot=pets.snapshot_file
    )
    assert list(ChunkShuffleSampler(ours)) == list(by_path)


def test_pickled_into_another_process(dataset_of: Make) -> None:
    ours = dataset_of()
    copied = pickle.loads(pickle.dumps(ours))
    assert copied[7] == ours[7]
    copied.close()  # a member of the memory of its own


def client_of_one_process(folder: Path) -> Client:
    """Return a client of a store that no helper can open, with two files that are put."""
    client = Client.connect(
        "pets",
        store=MemoryObjectStore(),
        index=MemoryStore(),
        snapshot_folder=folder / "snapshots",
        create=True,
    )
    client.put(content("cat/1"), "cat/1")
    client.put(b"", "dog/1")
    return client


def test_a_client_that_has_loaded_no_snapshot(
    tmp_path: Path, memory_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the memory of all who read the dataset, which of a store that can't be handed on is this
    process's own."""
    monkeypatch.setenv("DIESELFS_MEMORY_FOLDER", str(memory_folder))
    with client_of_one_process(tmp_path) as client:
        ours = DieselDataset(client, loader=name_in)
        client.put(b"later", "cat/2")
        client.flush()
        assert client.get("cat/2") == b"later"  # it answers from its index as before
    assert (ours[0], ours[1]) == (("cat/1", 0), ("", 1))
    ours.close()
    assert ours[0] == ("cat/1", 0)


def test_the_settings_and_the_allocator_of_the_client(
    tmp_path: Path, memory_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DIESELFS_MEMORY_FOLDER", str(memory_folder))
    with client_of_one_process(tmp_path) as client:
        allocation = AllocationSettings("one", f"lmdb://{tmp_path}/index")
        settings = replace(client.read_settings(task="mine"), allocation=allocation)
        monkeypatch.setattr(client, "read_settings", lambda: settings)
        ours = DieselDataset(client, loader=name_in)
    stack = ours._source.stack
    assert stack is not None
    assert stack.folder.path.name == settings.folder(ours.snapshot.dataset).path.name
    assert stack.allocations is not None
    assert stack.allocations.own is not None
    assert stack.allocations.own.statistics().dataset_bytes == stored_bytes(ours.snapshot)
    ours.close()


def test_plans_are_followed_by_the_master_of_the_memory(
    dataset_of: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    followed: list[Path] = []
    monkeypatch.setattr(NodeMemory, "follow", lambda memory, plan: followed.append(plan))
    ours = dataset_of()
    sampler = ChunkShuffleSampler(Subset(ours, range(500)))
    order = list(sampler)
    eventually(lambda: len(followed) == 2, "the next epoch's plan")
    plan = open_plan(followed[0])
    assert plan.plan.inodes.tolist() == ours.inodes[order].tolist()
    assert open_plan(followed[1]).after == plan.id
    sampler.close()
    assert not followed[0].exists()
    assert not followed[1].exists()


def test_a_plan_that_does_not_fit(dataset_of: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(memory: NodeMemory, plan: Path) -> None:
        raise PlanTooLarge("it needs 5 GB", "group size 7 would fit")

    monkeypatch.setattr(NodeMemory, "follow", refuse)
    ours = dataset_of()

    def read_all() -> None:
        sampler = ChunkShuffleSampler(ours)
        assert len(list(sampler)) == 500
        sampler.close()  # after what is under way

    with pytest.warns(RuntimeWarning, match="5 GB .group size 7"):
        read_all()


def test_images(tmp_path: Path) -> None:
    from PIL import Image

    Image.new("L", (2, 3), 7).save(tmp_path / "grey.png")
    image = decode_image((tmp_path / "grey.png").read_bytes())
    assert (image.mode, image.size, image.getpixel((0, 0))) == ("RGB", (2, 3), (7, 7, 7))
