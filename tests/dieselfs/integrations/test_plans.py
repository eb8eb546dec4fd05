"""Which plans are published, by whom, and what becomes of them. The mount is a folder that answers
as one does."""

import gc
import json
import multiprocessing
import threading
import warnings
from pathlib import Path
from typing import Any

import pytest

from dieselfs.errors import UsageError
from dieselfs.integrations.torch_loader import ChunkShuffleLoader
from dieselfs.integrations.torch_sampler import ChunkShuffleSampler
from dieselfs.prefetch import announcement
from dieselfs.prefetch.plan_file import FOLDER, PlanFile, open_plan
from tests.dieselfs.integrations.conftest import MadeDataset


class MadeMount:
    """The root of a mount with its control directory, and its task's folder."""

    def __init__(self, folder: Path, made: MadeDataset) -> None:
        self.root = folder / "mnt"
        self.task_folder = folder / "task"
        self.task_folder.mkdir()
        (self.root / ".dieselfs").mkdir(parents=True)
        self.answer: dict[str, Any] = {"accepted": True}
        self.paths = [f"{self.root}/{path}" for path in made.paths]
        self.say(snapshot_file=str(made.snapshot_file), node_memory=str(self.task_folder))

    def say(self, **document: str | None) -> None:
        (self.root / ".dieselfs" / "dataset.json").write_text(json.dumps(document))

    def plans(self) -> list[PlanFile]:
        """Those there are, each after the one that it follows."""
        folder = self.task_folder / FOLDER
        found = [open_plan(path) for path in folder.glob("[!.]*")]  # not those being written
        return sorted(found, key=lambda plan: plan.after in [other.id for other in found])

    def published(self, sampler: ChunkShuffleSampler) -> list[PlanFile]:
        """What there is when the sampler has nothing to publish any more: this epoch's and the next
        one's."""
        publishing = sampler._publisher._publishing
        assert publishing is not None
        publishing.join(60)
        assert not publishing.is_alive()
        return self.plans()

    def sampler(self, **options: Any) -> ChunkShuffleSampler:
        return ChunkShuffleSampler(self.paths, **{"group_size": 3, "seed": 2, **options})


@pytest.fixture
def mount(pets: MadeDataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MadeMount:
    made = MadeMount(tmp_path, pets)
    # An ordinary folder cannot answer for names that it has not seen before.
    monkeypatch.setattr(announcement, "_answer", lambda root, plan_id: made.answer)
    return made


def paths_of(pets: MadeDataset, plan: PlanFile) -> list[str]:
    with pets.snapshot as snapshot:
        return snapshot.paths_text(plan.plan.inodes).decode().splitlines()


def test_this_epoch_and_the_next(pets: MadeDataset, mount: MadeMount) -> None:
    sampler = mount.sampler()
    assert mount.plans() == []
    orders = []
    for epoch in range(3):
        sampler.set_epoch(epoch)
        order = [pets.paths[index] for index in sampler]
        now, following = mount.published(sampler)
        assert paths_of(pets, now) == order
        assert (now.plan.snapshot_id, now.plan.snapshot_path) == (
            pets.snapshot.id,
            str(pets.snapshot_file),
        )
        assert following.after == now.id
        orders.append((now.id, following.id, paths_of(pets, following)))
    assert [following for _, following, _ in orders[:2]] == [now for now, _, _ in orders[1:]]
    assert orders[0][2] != orders[1][2]
    sampler.close()
    assert mount.plans() == []


def test_an_epoch_that_was_not_expected(mount: MadeMount) -> None:
    sampler = mount.sampler()
    for epoch in (0, 5, 5, 6):
        sampler.set_epoch(epoch)
        list(sampler)
        assert [plan.position for plan in mount.published(sampler)] == [
            0,
            0,
        ]  # within what may be in flight
    del sampler
    gc.collect()
    assert mount.plans() == []


def test_position_as_indices_are_drawn(mount: MadeMount) -> None:
    """Of 550 samples a piece of 1,024 is all: the position is behind by what may be in flight."""
    sampler = mount.sampler(in_flight=50)
    drawn = iter(sampler)
    next(drawn)
    assert [plan.position for plan in mount.published(sampler)] == [0]
    assert len(list(drawn)) == 549
    assert [plan.position for plan in mount.published(sampler)] == [500, 0]
    sampler.close()


def test_position_as_a_loader_delivers(pets: MadeDataset, mount: MadeMount) -> None:
    sampler = mount.sampler()
    sampler.load_state_dict(sampler.state_dict(samples_done=100))
    loader = ChunkShuffleLoader(range(550), 16, sampler=sampler, num_workers=2)  # type: ignore[arg-type]
    positions = [mount.published(sampler)[0].position for _ in loader]
    assert positions == [*range(116, 550, 16), 550]
    assert mount.plans()[0].plan.inodes.size == 550  # the whole order, begun in the middle
    loader.set_epoch(1)
    positions = [mount.published(sampler)[0].position for _ in loader]
    assert positions == [*range(16, 550, 16), 550]
    sampler.close()


def test_what_is_left_under_another_division_is_a_plan_of_its_own(mount: MadeMount) -> None:
    sampler = mount.sampler()
    sampler.load_state_dict(mount.sampler(rank=0, world_size=2).state_dict(samples_done=100))
    assert len(list(sampler)) == 350
    assert [len(plan.plan) for plan in mount.published(sampler)] == [350, 550]
    sampler.close()


def read_without_plans(mount: MadeMount, sampler: ChunkShuffleSampler) -> None:
    assert len(list(sampler)) == 550
    assert mount.published(sampler) == []


def test_a_refusal_is_told_once(mount: MadeMount) -> None:
    mount.answer = {"accepted": False, "error": "it needs 5 GB", "hint": "group size 7 would fit"}
    sampler = mount.sampler()
    with pytest.warns(RuntimeWarning, match=r"it needs 5 GB \(group size 7 would fit\)"):
        read_without_plans(mount, sampler)
    sampler.set_epoch(1)
    with warnings.catch_warnings(record=True) as again:
        read_without_plans(mount, sampler)
    assert again == []


def test_mounts_that_take_no_plans(pets: MadeDataset, mount: MadeMount) -> None:
    sampler = mount.sampler()
    mount.answer = {}
    read_without_plans(mount, sampler)
    mount.say(snapshot_file=str(pets.snapshot_file), node_memory=None)
    read_without_plans(mount, sampler)
    mount.say(snapshot_file=str(pets.snapshot_file), node_memory=f"{mount.task_folder}/gone")
    with pytest.warns(RuntimeWarning, match="cannot write the plan"):
        read_without_plans(mount, sampler)


def test_a_folder_that_is_another_one_for_the_mount(mount: MadeMount) -> None:
    """A container may have a folder of that name in a /dev/shm of its own. The plan is told through
    the mount then, and this one is of an older release."""
    mount.answer = {"accepted": False, "found": False, "error": "no such file"}
    sampler = mount.sampler()
    with pytest.warns(RuntimeWarning, match=r"is another folder for the mount; .* its release"):
        read_without_plans(mount, sampler)
    sampler.close()


def test_not_published_on_request(mount: MadeMount) -> None:
    assert len(list(mount.sampler(publish=False))) == 550
    assert mount.plans() == []


def test_a_forked_child_leaves_its_parents_plans_alone(mount: MadeMount) -> None:
    """Neither when it ends, nor when it iterates and closes a sampler that it has inherited."""
    sampler = mount.sampler()
    list(sampler)
    published = [plan.id for plan in mount.published(sampler)]
    assert len(published) == 2

    def train() -> None:
        assert sorted(sampler) == list(range(550))
        assert len(mount.published(sampler)) == 4
        sampler.close()

    child = multiprocessing.get_context("fork").Process(target=train)
    child.start()
    child.join(60)
    assert child.exitcode == 0
    assert [plan.id for plan in mount.plans()] == published
    sampler.close()
    assert mount.plans() == []
    assert not [thread for thread in threading.enumerate() if thread.name == "dieselfs-plan"]


def test_a_dataset_behind_a_symbolic_link(mount: MadeMount, tmp_path: Path) -> None:
    (tmp_path / "data").symlink_to(mount.root / "train")
    for name in ("ant", "bee"):
        (mount.root / "train" / name).mkdir(parents=True)
    paths = [f"{tmp_path}/data/{path[6:]}" for path in mount_paths(mount) if path[:6] == "train/"]
    linked = ChunkShuffleSampler(paths, group_size=3)
    direct = ChunkShuffleSampler(
        [f"{mount.root}/train{path[len(str(tmp_path)) + 5 :]}" for path in paths], group_size=3
    )
    assert list(linked) == list(direct)
    linked.close()
    direct.close()
    with pytest.raises(UsageError, match="does not lie in"):
        ChunkShuffleSampler([*paths, "/elsewhere/x"])


def mount_paths(mount: MadeMount) -> list[str]:
    return [path[len(str(mount.root)) + 1 :] for path in mount.paths]
