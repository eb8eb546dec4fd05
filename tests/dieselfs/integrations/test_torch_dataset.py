"""The dataset through the client, beside ImageFolder on a copy of the same tree."""

import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch.utils.data import DataLoader

from dieselfs.errors import UsageError
from dieselfs.integrations.torch_dataset import DieselDataset, load_image
from dieselfs.integrations.torch_loader import ChunkShuffleLoader
from dieselfs.integrations.torch_sampler import ChunkShuffleSampler
from tests.dieselfs.integrations.conftest import CLASSES, MadeDataset, content, keep, name_in
from tests.dieselfs.integrations.imagefolder import DatasetFolder


def dataset_of(made: MadeDataset, under: str = "train", **options: Any) -> DieselDataset:
    return DieselDataset(made.client, under, loader=name_in, **options)


def test_equals_what_torchvision_lists(pets: MadeDataset, tmp_path: Path) -> None:
    for path in pets.paths:
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_bytes(content(path))
    listed = DatasetFolder(
        os.fspath(tmp_path / "train"), lambda path: path[len(str(tmp_path)) + 1 :], (".bin",)
    )
    ours = dataset_of(pets)
    assert [ours[index] for index in range(len(ours))] == [
        listed[index] for index in range(len(listed))
    ]
    assert ours.classes == listed.classes == list(CLASSES)
    assert ours.class_to_idx == listed.class_to_idx
    assert ours.targets.tolist() == listed.targets
    assert len(ours) == len(listed) == 500
    assert [ours.path(index) for index in (0, 499)] == [listed[0][0], listed[499][0]]


def test_whole_batches_and_transforms(pets: MadeDataset) -> None:
    ours = dataset_of(pets, transform=str.upper, target_transform=lambda target: -target)
    assert ours.__getitems__([3, 400]) == [ours[3], ours[400]]
    assert ours[400] == (ours.path(400).upper(), -int(ours.targets[400]))
    with pytest.raises(IndexError):
        ours[500]


def test_nothing_per_file_but_columns(pets: MadeDataset) -> None:
    ours = dataset_of(pets)
    assert ours.inodes.dtype == np.uint32
    assert not [
        name
        for name, value in vars(ours).items()
        if isinstance(value, list | dict) and len(value) > 5
    ]


def test_classes_are_the_folders_of_a_directory(pets: MadeDataset) -> None:
    assert dataset_of(pets, "").classes == ["train", "val"]
    assert len(dataset_of(pets, "/val/")) == 50
    assert len(dataset_of(pets, "val", extensions=(".BIN", ".jpg"))) == 50
    assert len(dataset_of(pets, "val", extensions=(".jpg",))) == 0
    with pytest.raises(UsageError, match="no such directory"):
        dataset_of(pets, "test")
    with pytest.raises(UsageError, match="no folders"):
        dataset_of(pets, "val/ant/sub")


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_workers(pets: MadeDataset, method: str) -> None:
    """After the parent itself has read, so that a fork inherits a cache and its lock."""
    ours = dataset_of(pets)
    assert ours[0][0] == ours.path(0)
    sampler = ChunkShuffleSampler(ours, seed=1, group_size=3)
    options: dict[str, Any] = {
        "num_workers": 2,
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


def test_order_of_its_files_alone(pets: MadeDataset) -> None:
    ours = dataset_of(pets, "val")
    by_path = ChunkShuffleSampler(
        [ours.path(index) for index in range(len(ours))], snapshot=pets.snapshot_file
    )
    assert list(ChunkShuffleSampler(ours)) == list(by_path)


def test_pickled_into_another_process(pets: MadeDataset) -> None:
    ours = dataset_of(pets)
    assert pickle.loads(pickle.dumps(ours))[7] == ours[7]


def test_a_client_that_has_loaded_no_snapshot(pets: MadeDataset) -> None:
    with pets.client() as client:
        assert client.snapshot is None
        ours = DieselDataset(client, "val", loader=name_in)
    assert ours[3][0] == ours.path(3)


def test_images(tmp_path: Path) -> None:
    from PIL import Image

    Image.new("L", (2, 3), 7).save(tmp_path / "grey.png")
    image = load_image((tmp_path / "grey.png").read_bytes())
    assert (image.mode, image.size, image.getpixel((0, 0))) == ("RGB", (2, 3), (7, 7, 7))
