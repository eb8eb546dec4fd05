"""The allocation directory of a pod: the contract, and what the annotations add."""

from __future__ import annotations

from pathlib import Path

import pytest

from dieselfs.allocation.directory.directories import allocation_directory
from dieselfs.allocation.directory.folder import FolderDirectory
from dieselfs.allocation.directory.pod import PodDirectory
from dieselfs.cache.jobs import job_name
from dieselfs.cache.jobs.job_name import ANNOTATIONS_VARIABLE
from dieselfs.cache.jobs.pod_info import PREFIX_VARIABLE
from dieselfs.errors import RegistryUnavailable
from tests.contracts.allocation_directory import (
    GIB,
    ID,
    LEASE_S,
    OTHER,
    OTHER_ID,
    AllocationDirectoryContract,
    made_lease,
)
from tests.dieselfs.allocation.directory.test_folder import FolderPlace
from tests.services.kubernetes_server import write_podinfo


class PodPlace(FolderPlace):
    def __init__(self, folder: Path, path: Path) -> None:
        super().__init__(folder)
        self.path = path

    def open(self) -> PodDirectory:
        found = PodDirectory(self.path, self.folder, {})
        found._monotonic = lambda: self.now
        return found


class TestPodDirectory(AllocationDirectoryContract):
    @pytest.fixture
    def place(self, tmp_path: Path) -> PodPlace:
        write_podinfo(tmp_path / "annotations", {"kubernetes.io/config.source": "api"})
        return PodPlace(tmp_path / "allocations", tmp_path / "annotations")


class Pod:
    def __init__(self, folder: Path) -> None:
        self.folder, self.path = folder / "shm", folder / "annotations"
        self.says()

    def says(self, **values: str) -> None:
        named = {"job": "resnet", "dataset": "imagenet", **values}
        found = {f"dieselfs.io/{key.replace('_', '-')}": value for key, value in named.items()}
        write_podinfo(self.path, found)

    def open(self) -> PodDirectory:
        return PodDirectory(self.path, self.folder, {})


@pytest.fixture
def pod(tmp_path: Path) -> Pod:
    return Pod(tmp_path)


def test_readers_get_what_the_annotations_give(pod: Pod) -> None:
    directory = pod.open()
    beat = directory.beat(made_lease(), LEASE_S)
    assert (beat.io, beat.cache_version, beat.has_any) == (None, 0, False)
    pod.says(remote_io="20000000", cache=str(GIB), cache_dataset_id=ID)
    beat = directory.beat(made_lease(), LEASE_S)
    assert beat.has_any
    assert beat.io is not None
    assert (beat.io.bytes_per_s, beat.io.origin) == (20e6, "allocator")
    decisions = directory.decisions()
    assert decisions.version == beat.cache_version > 0
    cache = decisions.cache_of(ID)
    assert cache is not None
    assert cache.size_bytes == GIB
    pod.says(remote_io="10000000", cache=str(GIB), cache_dataset_id=ID)
    beat = directory.beat(made_lease(), LEASE_S)
    assert beat.io is not None
    assert (beat.io.bytes_per_s, beat.cache_version) == (10e6, decisions.version)
    pod.says()
    beat = directory.beat(made_lease(), LEASE_S)
    assert (beat.io, beat.has_any) == (None, False)
    assert beat.cache_version != decisions.version
    assert directory.decisions().caches == []


def test_the_readers_of_a_pod_divide_its_share_among_themselves(pod: Pod) -> None:
    pod.says(remote_io="20000000")
    first, second = pod.open(), pod.open()
    first.beat(made_lease(), LEASE_S)
    assert len(second.beat(made_lease(OTHER), LEASE_S).peers) == 2


def test_a_dataset_that_was_made_again_has_no_quota(pod: Pod) -> None:
    pod.says(cache=str(GIB), cache_dataset_id=OTHER_ID)
    directory = pod.open()
    directory.beat(made_lease(), LEASE_S)
    assert directory.decisions().cache_of(ID) is None
    pod.says(cache=str(GIB))
    directory.beat(made_lease(), LEASE_S)
    assert directory.decisions().cache_of(ID) is not None


def test_a_reader_of_another_job_has_no_share(pod: Pod, caplog: pytest.LogCaptureFixture) -> None:
    pod.says(remote_io="20000000")
    directory = pod.open()
    for _ in range(2):
        assert directory.beat(made_lease(job="bert"), LEASE_S).io is None
    assert caplog.text.count("remote IO is for job 'resnet', and this process reads for 'b") == 1


def test_by_hand_goes_before(pod: Pod) -> None:
    pod.says(remote_io="20000000", cache=str(GIB))
    directory = pod.open()
    directory.allocate_remote_io("resnet", 5e6, origin="hand")
    directory.allocate_cache_size("imagenet", ID, 5, origin="hand")
    beat = directory.beat(made_lease(), LEASE_S)
    assert beat.io is not None
    assert beat.io.bytes_per_s == 5e6
    found = directory.decisions()
    cache, io = found.cache_of(ID), found.io_of("resnet")
    assert cache is not None
    assert io is not None
    assert (cache.size_bytes, io.bytes_per_s) == (5, 5e6)


def test_bad_values_are_named_once_and_ignored(pod: Pod, caplog: pytest.LogCaptureFixture) -> None:
    directory = pod.open()
    for number in range(3):
        pod.says(remote_io="-5", cache="1 PiB and more", noise=str(number))
        assert not directory.beat(made_lease(), LEASE_S).has_any
    for said in ("dieselfs.io/remote-io of '-5'", "dieselfs.io/cache of '1 PiB and more'"):
        assert caplog.text.count(said) == 1
    pod.says(remote_io="nan")
    assert directory.beat(made_lease(), LEASE_S).io is None
    pod.says(remote_io="5MB/s", cache="1GiB")
    beat = directory.beat(made_lease(), LEASE_S)
    assert beat.io is not None
    assert beat.io.bytes_per_s == 5 << 20


def test_a_file_that_is_missing_is_a_directory_that_does_not_answer(pod: Pod) -> None:
    directory = pod.open()
    pod.path.unlink()
    for call in (directory.decisions, lambda: directory.beat(made_lease(), LEASE_S)):
        with pytest.raises(RegistryUnavailable, match="annotations"):
            call()


def test_a_pod_is_found_by_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_name, "ANNOTATIONS_PATH", tmp_path / "none")
    assert type(allocation_directory("lmdb:///x")) is FolderDirectory
    monkeypatch.setenv(ANNOTATIONS_VARIABLE, str(tmp_path / "annotations"))
    assert isinstance(allocation_directory("lmdb:///x"), PodDirectory)


def test_the_prefix_can_be_another_one(tmp_path: Path) -> None:
    path = tmp_path / "annotations"
    write_podinfo(path, {"example.org/job": "resnet", "example.org/remote-io": "7"})
    directory = PodDirectory(path, tmp_path / "shm", {PREFIX_VARIABLE: "example.org/"})
    found = directory.beat(made_lease(), LEASE_S).io
    assert found is not None
    assert found.bytes_per_s == 7
