from collections.abc import Iterator
from pathlib import Path

import pytest

from dieselfs.allocation.administration.overview import overview
from dieselfs.allocation.administration.present_plan import explained
from dieselfs.allocation.directory.folder import FolderDirectory
from tests.dieselfs.allocation.made_leases import DATASET_BYTES, entry, lease

MIB = 1 << 20


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[FolderDirectory]:
    made = FolderDirectory(tmp_path / "directory")
    yield made
    for each in made.leases():
        made.withdraw(each.reader)


def test_jobs_are_those_that_read_are_declared_or_have_a_decision(
    directory: FolderDirectory,
) -> None:
    directory.beat(lease("reads"), 60.0)
    directory.put_job(entry("declared"))
    directory.allocate_remote_io("decided", 1e6, origin="hand")
    found = {job.name: job for job in overview(directory)}
    assert list(found) == ["decided", "declared", "reads"]
    assert found["declared"].dataset_bytes == DATASET_BYTES
    assert found["decided"].dataset == ""
    assert (found["reads"].speed, found["reads"].epoch_left_bytes) == (None, None)


def test_a_job_of_two_datasets_is_shown_with_the_one_that_it_reads_most(
    directory: FolderDirectory,
) -> None:
    directory.beat(lease("a", speed_bytes_per_s=9e6, used_bytes_per_s=1e6, host="n2"), 60.0)
    other = {"dataset": "small", "dataset_id": "2" * 32, "speed_bytes_per_s": 1e6}
    directory.beat(lease("a", used_bytes_per_s=2e6, host="n1", **other), 60.0)
    directory.allocate_cache_size("imagenet", "1" * 32, 5 * MIB, origin="allocator")
    [job] = overview(directory)
    assert (job.dataset, job.used_bytes_per_s) == ("imagenet", 3e6)
    assert [each.host for each in job.readers] == ["n1", "n2"]
    assert [each.host for each in job.main_readers] == ["n2"]
    assert job.cache is not None
    assert job.speed is not None
    assert job.speed.bytes_per_s == 9e6


def test_what_is_left_of_an_epoch_is_by_the_readers_that_are_in_it(
    directory: FolderDirectory,
) -> None:
    for epoch, read in ((2, DATASET_BYTES // 4), (2, DATASET_BYTES // 8), (1, DATASET_BYTES)):
        directory.beat(lease("a", epoch=epoch, epoch_read_bytes=read), 60.0)
    [job] = overview(directory)
    assert job.epoch_left_bytes == DATASET_BYTES * 5 // 8


def test_a_job_without_a_limit_is_limited_by_its_own_speed(directory: FolderDirectory) -> None:
    directory.beat(lease("a", speed_bytes_per_s=9e6, effective_bytes=DATASET_BYTES // 2), 60.0)
    [why] = explained(overview(directory)).values()
    assert why.limited_by == "speed"
    assert why.planned.io_bytes_per_s == pytest.approx(4.5e6)
    directory.allocate_remote_io("a", 2e6, origin="allocator")
    [why] = explained(overview(directory)).values()
    assert why.limited_by == "io"
    assert why.planned.rate_bytes_per_s == pytest.approx(4e6)
    assert why.rate_by_a_mib_per_s == pytest.approx(2 * MIB)
