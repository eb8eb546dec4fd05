"""Samples of several files: whole dictionaries, each once an epoch, by the client or a mount."""

from __future__ import annotations

import json
import pickle
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch.utils.data import DataLoader, Subset

from dieselfs.cache.node.task_folder import TaskFolder
from dieselfs.cache.task.node_memory import NodeMemory
from dieselfs.errors import UsageError
from dieselfs.integrations.sample_parts import sample_parts
from dieselfs.integrations.torch_loader import ChunkShuffleLoader
from dieselfs.integrations.torch_sampler import ChunkShuffleSampler
from dieselfs.integrations.torch_samples import SampleDataset
from dieselfs.prefetch.plan_file import open_plan
from tests.dieselfs.integrations.conftest import MadeDataset, keep, make
from tests.dieselfs.integrations.users_mount import mounted_by_dlcmd
from tests.eventually import eventually
from tests.mount.mounting import needs_fuse

KEYS = [
    f"{split}/{group}/{n:03}" for split in ("train", "val") for group in "ab" for n in range(90)
]
PARTS = ("jpg", "json")
PATHS = [
    *(f"{key}.{part}" for key in KEYS for part in PARTS),
    *("train/a/000.seg.png", "train/README", "train/a/README.md", "train/a/000-1.txt"),
    *("odd/1.jpg", "odd/2.jpg", "odd/2.json", "odd/3.json", "odd/.2.jpg"),
]
MEMORY_BYTES = 64 << 20

Make = Callable[..., SampleDataset]


def content(path: str) -> bytes:
    if path.endswith(".json"):
        return json.dumps({"of": path}).encode()
    return path.encode().ljust(300, b".")


def text(data: bytes) -> str:
    return data.rstrip(b".").decode()


def name_of(sample: dict[str, Any]) -> str:
    key: str = sample["__key__"]
    return key


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> MadeDataset:
    made = make(tmp_path_factory.mktemp("pairs"), PATHS, content, keep_together="sample")
    with made.snapshot as snapshot:
        assert snapshot.chunk_count > 10
    return made


@pytest.fixture
def dataset_of(pairs: MadeDataset, memory_folder: Path) -> Iterator[Make]:
    with pairs.client() as client:
        reader = client.dataset.reader
    folder = TaskFolder.at("pets", memory_folder)
    with NodeMemory.open(folder, reader, budget_bytes=MEMORY_BYTES, linger_s=0.1) as memory:

        def made(
            under: str = "train", parts: Any = PARTS, decode: Any = None, **options: Any
        ) -> Any:
            return SampleDataset(
                pairs.client, under, parts=parts, decode=decode, memory=memory, **options
            )

        yield made
    eventually(lambda: not folder.path.exists(), "end of the helper")


def expected(key: str) -> dict[str, Any]:
    return {"__key__": key, **{part: content(f"{key}.{part}") for part in PARTS}}


def test_dictionaries_as_webdataset_gives_them(dataset_of: Make) -> None:
    pairs = dataset_of()
    keys = [key for key in KEYS if key.startswith("train")]
    assert len(pairs) == len(keys) == 180
    assert [pairs[index] for index in range(180)] == [expected(key) for key in keys]
    assert pairs.__getitems__([7, 3, 3]) == [pairs[7], pairs[3], pairs[3]]
    assert list(pairs[0]) == ["__key__", "jpg", "json"]
    assert pairs[-1]["__key__"] == pairs.key(179) == keys[-1]
    with pytest.raises(IndexError):
        pairs[180]


def test_decoders_by_part_and_a_transform(dataset_of: Make) -> None:
    pairs = dataset_of("val", PARTS, {"json": json.loads, "jpg": text})
    assert pairs[3] == {
        "__key__": KEYS[183],
        "jpg": f"{KEYS[183]}.jpg",
        "json": {"of": f"{KEYS[183]}.json"},
    }
    assert dataset_of("val", ("json",), transform=name_of)[3] == KEYS[183]
    assert dataset_of("val", "json").parts == ("json",)
    with pytest.raises(UsageError, match="no part png to decode"):
        dataset_of("val", PARTS, {"png": text})


def test_an_extension_is_all_behind_the_first_dot(dataset_of: Make) -> None:
    assert list(map(name_of, _all(dataset_of("train", ("seg.png",))))) == ["train/a/000"]
    with pytest.raises(UsageError, match="is a part png"):
        dataset_of("train", ("png",))


def test_a_sample_that_lacks_a_part_is_named_or_left_out(dataset_of: Make) -> None:
    with pytest.raises(UsageError, match=r"sample odd/.2 has no json \(3 of 4 samples"):
        dataset_of("odd")
    assert [name_of(sample) for sample in _all(dataset_of("odd", missing="skip"))] == ["odd/2"]
    assert len(dataset_of("odd", ("jpg",))) == 3


def _all(dataset: SampleDataset) -> list[dict[str, Any]]:
    return [dataset[index] for index in range(len(dataset))]


@pytest.mark.parametrize("parts", [(), (".jpg",), ("jpg", "jpg"), ("",)])
def test_parts_that_are_none(dataset_of: Make, parts: Any) -> None:
    with pytest.raises(UsageError, match="are no parts of a sample"):
        dataset_of("train", parts)


def test_the_parts_are_required(pairs: MadeDataset) -> None:
    with pytest.raises(TypeError, match="'parts'"):
        SampleDataset(pairs.client, "train")  # type: ignore[call-arg]


def test_a_directory_without_samples(dataset_of: Make) -> None:
    with pytest.raises(UsageError, match="no file below val of pets is a part webp"):
        dataset_of("val", ("webp",))
    with pytest.raises(UsageError, match="no such directory"):
        dataset_of("test")


def test_four_bytes_for_each_sample_and_part(pairs: MadeDataset, dataset_of: Make) -> None:
    made = dataset_of("val")
    assert made.part_inodes.dtype == np.uint32
    assert made.part_inodes.nbytes == 4 * 2 * len(made)
    kept = [value for name, value in vars(made).items() if isinstance(value, list | dict)]
    assert sum(map(len, kept)) == 0

    # Only what the call itself allocates counts: other tests have left threads behind.
    of_the_call = tracemalloc.Filter(True, sample_parts.__code__.co_filename, all_frames=True)
    with pairs.snapshot as snapshot:
        sample_parts(snapshot, PARTS, "train")  # fills caches
        tracemalloc.start(32)
        try:
            found = sample_parts(snapshot, PARTS, "train")
            traces = tracemalloc.take_snapshot().filter_traces([of_the_call])
        finally:
            tracemalloc.stop()
    assert len(found) == 180
    blocks = sum(statistic.count for statistic in traces.statistics("filename"))
    assert 0 < blocks < 100


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_every_sample_once_an_epoch_in_workers(dataset_of: Make, method: str) -> None:
    made = dataset_of("train", PARTS, {"json": json.loads})
    sampler = ChunkShuffleSampler(made, seed=1, group_size=3)
    options: dict[str, Any] = {
        "num_workers": 1 if method == "spawn" else 2,
        "multiprocessing_context": method,
        "collate_fn": keep,
    }
    loader = ChunkShuffleLoader(made, 32, sampler=sampler, **options)
    found: list[Any] = []
    for number, batch in enumerate(loader, 1):
        found += batch
        if number == 3:
            break
    state = loader.state_dict()
    again = ChunkShuffleLoader(
        made, 32, sampler=ChunkShuffleSampler(made, seed=1, group_size=3), collate_fn=keep
    )
    again.load_state_dict(state)
    found += [sample for batch in again for sample in batch]
    assert sorted(map(name_of, found)) == [key for key in KEYS if key.startswith("train")]
    assert all(sample["json"]["of"] == f"{sample['__key__']}.json" for sample in found)


def test_default_collation(dataset_of: Make) -> None:
    batch = next(iter(DataLoader(dataset_of(), 4)))
    assert batch["__key__"] == KEYS[:4]
    assert batch["jpg"] == [content(f"{key}.jpg") for key in KEYS[:4]]


def test_ranks_share_out_whole_samples(dataset_of: Make) -> None:
    made = dataset_of()
    ranks = [ChunkShuffleSampler(made, seed=3, rank=rank, world_size=3) for rank in range(3)]
    assert sorted(index for sampler in ranks for index in sampler) == list(range(180))


def test_groups_are_read_in_the_order_of_their_chunks(dataset_of: Make) -> None:
    """The files of a group are of its chunks alone: both parts of a sample lie in one chunk."""
    made = dataset_of()
    chunk = made.snapshot.columns.chunk
    sampler = ChunkShuffleSampler(made, seed=5, group_size=2, publish=False)
    of_files = chunk[made.part_inodes[list(sampler)]]
    assert (of_files[:, 0] == of_files[:, 1]).all()
    order = of_files[:, 0].tolist()
    firsts = list(dict.fromkeys(order))
    for number in range(0, len(firsts), 2):
        group = firsts[number : number + 2]
        places = [place for place, found in enumerate(order) if found in group]
        assert places == list(range(places[0], places[0] + len(places)))


def test_the_plan_names_all_parts(dataset_of: Make) -> None:
    made = dataset_of()
    for samples in (made, Subset(made, range(0, 180, 2))):
        sampler = ChunkShuffleSampler(samples, seed=1, group_size=3)
        loader = ChunkShuffleLoader(samples, 10, sampler=sampler, collate_fn=keep)
        batches = iter(loader)
        next(batches)
        folder = made._source.memory.folder.path  # type: ignore[union-attr]
        publishing = sampler._publisher._publishing
        assert publishing is not None
        publishing.join(60)
        order = list(ChunkShuffleSampler(samples, seed=1, group_size=3, publish=False))
        if isinstance(samples, Subset):
            order = [2 * index for index in order]
        plans = [open_plan(path) for path in folder.glob("plans/[!.]*")]
        [plan] = [
            plan
            for plan in plans
            if plan.plan.inodes.tolist() == made.part_inodes[order].ravel().tolist()
        ]
        assert plan.plan.group_start[-1] == len(plan.plan) == 2 * len(order)
        next(batches)
        assert plan.position == 2 * 20
        sampler.close()


def test_a_sampler_of_other_samples_is_refused(dataset_of: Make) -> None:
    made = dataset_of()
    with pytest.raises(UsageError, match="not of this dataset"):
        ChunkShuffleLoader(dataset_of("val"), 4, sampler=ChunkShuffleSampler(made))
    pickled: SampleDataset = pickle.loads(pickle.dumps(made))
    assert pickled[17] == made[17]
    pickled.close()


@needs_fuse
def test_from_a_mount(
    pairs: MadeDataset,
    tmp_path: Path,
    memory_folder: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for root in mounted_by_dlcmd(pairs, tmp_path, memory_folder, monkeypatch):
        made = SampleDataset(root, "train", parts=PARTS, decode={"json": json.loads})
        assert made.mount_root == root
        assert len(made) == 180
        within = SampleDataset(f"{root}/train", "a", parts=PARTS)
        assert [within.key(index) for index in range(len(within))] == KEYS[:90]
        assert within[4] == expected(KEYS[4])
        sampler = ChunkShuffleSampler(made, seed=1, group_size=3)
        loader = ChunkShuffleLoader(made, 16, sampler=sampler, num_workers=1, collate_fn=keep)
        found: list[Any] = [sample for batch in loader for sample in batch]
        assert sorted(map(name_of, found)) == [key for key in KEYS if key.startswith("train")]
        assert all(sample["json"]["of"] == f"{sample['__key__']}.json" for sample in found)
        statistics = json.loads((root / ".dieselfs/stats.json").read_bytes())
        assert "plan" in json.dumps(statistics)
        sampler.close()
    with pytest.raises(UsageError, match="does not lie in a mounted dataset"):
        SampleDataset(tmp_path, parts=PARTS)
