"""Stock ImageFolder and DataLoader over a real mount."""

import io
import json
import runpy
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from torch.utils.data import DataLoader, Subset

from dieselfs.errors import UsageError
from dieselfs.integrations.torch_loader import ChunkShuffleLoader
from dieselfs.integrations.torch_sampler import ChunkShuffleSampler
from dieselfs.prefetch.announcement import mount_above
from tests.dieselfs.integrations.conftest import MadeDataset, make
from tests.dieselfs.integrations.users_mount import mounted_by_dlcmd
from tests.eventually import eventually
from tests.mount.mounting import Mount, mounted, needs_fuse
from tests.mount.packing import PackedDataset

pytestmark = needs_fuse
PATHS = [f"{split}/c{n % 7}/{n:03}.png" for split in ("train", "val") for n in range(200)]
PATHS += ["train/c1/notes.txt"]


def image_of(path: str) -> bytes:
    """One whose colour is the file's number."""
    number = PATHS.index(path)
    file = io.BytesIO()
    Image.new("RGB", (8, 8), (number // 256, number % 256, 0)).save(file, "PNG")
    return file.getvalue()


def colour(image: Image.Image) -> int:
    red, green, _ = image.getpixel((0, 0))  # type: ignore[misc]
    return int(red) * 256 + int(green)


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> MadeDataset:
    made = make(tmp_path_factory.mktemp("images"), PATHS, image_of)
    with made.snapshot as snapshot:
        assert snapshot.chunk_count > 5
    return made


@pytest.fixture(scope="module")
def mount(images: MadeDataset, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mount]:
    packed = PackedDataset(images.snapshot_file, images.folder / "store", images.folder)
    with mounted(packed, tmp_path_factory.mktemp("mount")) as running:
        yield running


def read(loader: DataLoader[list[int]], batches: int | None = None) -> list[tuple[int, int]]:
    found: list[tuple[int, int]] = []
    for number, (samples, targets) in enumerate(loader, 1):
        found += zip(samples.tolist(), targets.tolist(), strict=True)
        if number == batches:
            break
    return found


def test_image_folder_with_a_plain_loader(images: MadeDataset, mount: Mount) -> None:
    from torchvision.datasets import ImageFolder

    folder = ImageFolder(f"{mount.path}/train", colour)
    sampler = ChunkShuffleSampler(folder, seed=1, group_size=2)
    found = read(DataLoader(folder, 16, sampler=sampler, num_workers=2))
    assert [number for number, _ in found] == [
        PATHS.index(folder.samples[index][0][len(str(mount.path)) + 1 :]) for index in sampler
    ]
    assert sorted(found) == [(number, number % 7) for number in range(200)]
    assert mount_above(f"{mount.path}/train/c1") == mount.path.resolve()
    sampler.close()


def test_resume_of_a_part_of_it(mount: Mount) -> None:
    from torchvision.datasets import ImageFolder

    part = Subset(ImageFolder(str(mount.path / "train"), colour), range(0, 200, 3))
    sampler = ChunkShuffleSampler(part, seed=1, group_size=2)
    before = ChunkShuffleLoader(part, 8, sampler=sampler, num_workers=2)
    found = read(before, 3)
    after = ChunkShuffleLoader(part, 8, sampler=ChunkShuffleSampler(part, group_size=2))
    after.load_state_dict(before.state_dict())
    found += read(after)
    assert len(found) == len(set(found)) == 67
    before.sampler.close()
    after.sampler.close()


def test_a_mount_that_is_told_another_snapshot_file(images: MadeDataset, mount: Mount) -> None:
    from torchvision.datasets import ImageFolder

    folder = ImageFolder(f"{mount.path}/val", colour)
    found = ChunkShuffleSampler(folder)
    told = ChunkShuffleSampler(folder, mount=mount.path, snapshot=images.snapshot_file)
    half_told = ChunkShuffleSampler(folder, snapshot=images.snapshot)
    assert list(found) == list(told) == list(half_told)
    relative = [path[len(str(mount.path)) + 1 :] for path, _ in folder.samples]
    assert list(found) == list(ChunkShuffleSampler(relative, snapshot=images.snapshot_file))


def test_the_example_resumes_within_an_epoch(
    mount: Mount,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    example = runpy.run_path(str(Path(__file__).parents[3] / "examples/train_imagefolder.py"))
    options = ["--workers=0", "--batch=20", "--save-every=2", f"--checkpoint={tmp_path}/run.pt"]
    monkeypatch.setattr(sys, "argv", ["train", f"{mount.path}/val", *options])
    order = example["ChunkShuffleSampler"]
    with monkeypatch.context() as patch:
        patch.setattr(order, "delivered", killed_after(order.delivered, 100))
        with pytest.raises(KeyboardInterrupt):
            example["main"]()
    example["main"]()
    said = capsys.readouterr().out
    assert "going on in epoch 1: 120 images are left of it" in said
    assert "epoch 1: 120 images" in said
    assert "epoch 2: 200 images" in said


def killed_after(delivered: Callable[[Any, int], None], samples: int) -> Callable[[Any, int], None]:
    """Return `delivered`, which interrupts the training at a number of samples."""

    def until(sampler: Any, done: int) -> None:
        if done >= samples:
            raise KeyboardInterrupt
        delivered(sampler, done)

    return until


def test_files_outside_of_the_mount(mount: Mount, tmp_path: Path) -> None:
    paths = [f"{mount.path}/train/c0/000.png", str(tmp_path / "000.png")]
    with pytest.raises(UsageError, match="does not lie in"):
        ChunkShuffleSampler(paths)
    with pytest.raises(UsageError, match="does not lie in a mounted dataset"):
        ChunkShuffleSampler(paths[1:])


@pytest.fixture
def users_mount(
    images: MadeDataset, tmp_path: Path, memory_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Path]:
    yield from mounted_by_dlcmd(images, tmp_path, memory_folder, monkeypatch)


def test_a_users_mount_follows_the_plan(users_mount: Path, memory_folder: Path) -> None:
    from torchvision.datasets import ImageFolder

    folder = ImageFolder(f"{users_mount}/train", colour)
    sampler = ChunkShuffleSampler(folder, seed=3, group_size=2)
    loader = ChunkShuffleLoader(folder, 16, sampler=sampler, num_workers=2)
    for epoch in range(2):
        loader.set_epoch(epoch)
        assert sorted(read(loader)) == [(number, number % 7) for number in range(200)]

    def statistics() -> dict[str, Any]:
        found: dict[str, Any] = json.loads((users_mount / ".dieselfs" / "stats.json").read_text())
        return found

    eventually(lambda: statistics()["plan"], "a plan that is followed")
    assert statistics()["plan"]["files"] == 200
    eventually(lambda: statistics()["cache"]["node"]["prefetched"], "chunks fetched ahead")
    plans = next(memory_folder.glob("dieselfs-*/*/plans"))
    sampler.close()
    assert list(plans.iterdir()) == []
