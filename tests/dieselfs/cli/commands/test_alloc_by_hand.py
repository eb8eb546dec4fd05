"""`dlcmd alloc set-cache`, `set-io` and `job`: decisions by hand and declared jobs, without mounts.

The allocation directory is a folder of the test.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from dieselfs.allocation.directory.folder import FolderDirectory
from tests.dieselfs.allocation.made_leases import lease
from tests.dieselfs.cli.conftest import Dlcmd

MIB = 1 << 20
HEADER = "job,dataset,dataset_bytes,speed_bytes_per_s,gpus,passes,submitted_s,regular"


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FolderDirectory:
    monkeypatch.setenv("DIESELFS_MEMORY_FOLDER", str(tmp_path))
    return FolderDirectory(tmp_path / f"dieselfs-allocations-{os.geteuid()}")


@pytest.fixture
def pets_id(dlcmd: Dlcmd, directory: FolderDirectory, pets: object) -> str:
    [record] = dlcmd("alloc", "set-cache", "pets", "none", "--json").records
    return str(record["dataset_id"])


def test_a_quota_by_hand_goes_before_an_allocators_and_is_taken_back(
    dlcmd: Dlcmd, directory: FolderDirectory, pets_id: str
) -> None:
    directory.allocate_cache_size("pets", pets_id, 64 * MIB, origin="allocator")
    assert dlcmd("alloc", "set-cache", "dl://pets", "12MiB").lines == [
        "pets: a quota of 12.0 MiB, set by hand"
    ]
    found = directory.decisions().cache_of(pets_id)
    assert found is not None
    assert (found.size_bytes, found.origin) == (12 * MIB, "hand")
    [record] = dlcmd("alloc", "set-cache", "pets", "none", "--json").records
    assert (record["cache_bytes"], record["origin"]) == (64 * MIB, "allocator")
    directory.allocate_cache_size("pets", pets_id, None, origin="allocator")
    assert dlcmd("alloc", "set-cache", "pets", "none").lines == [
        "pets: nothing was decided by hand",
        "pets: no quota, nothing is decided",
    ]


def test_a_quota_of_nothing(dlcmd: Dlcmd, directory: FolderDirectory, pets_id: str) -> None:
    assert "nothing of it is cached any more" in dlcmd("alloc", "set-cache", "pets", "0").lines
    found = directory.decisions().cache_of(pets_id)
    assert found is not None
    assert found.size_bytes == 0


@pytest.mark.parametrize(("region_bytes", "least"), [(0, "4.0 MiB"), (64 * MIB, "64.0 MiB")])
def test_a_quota_below_a_region_is_refused_with_the_least_that_would_do(
    dlcmd: Dlcmd, directory: FolderDirectory, pets_id: str, region_bytes: int, least: str
) -> None:
    reader = lease("a", dataset="pets", dataset_id=pets_id, region_bytes=region_bytes)
    directory.beat(reader, 60.0)
    refused = dlcmd("alloc", "set-cache", "pets", "3MiB")
    assert refused.code == 2
    assert f"give at least {least}" in refused.err
    assert not directory.decisions().caches
    assert dlcmd("alloc", "set-cache", "pets", least.replace(" ", "")).code == 0
    directory.withdraw(reader.reader)


@pytest.mark.parametrize(
    ("size", "said"),
    [
        ("-5MiB", "it must be 0 or more"),
        ("much", "is not a size"),
        ("nan", "is not a size"),
        ("9EB", "a quota of 10376293541461622784 bytes"),
    ],
)
@pytest.mark.usefixtures("pets_id")
def test_sizes_that_are_none(
    dlcmd: Dlcmd, directory: FolderDirectory, size: str, said: str
) -> None:
    refused = dlcmd("alloc", "set-cache", "pets", size)
    assert (refused.code, said in refused.err) == (2, True), refused.err
    assert not directory.decisions().caches


def test_a_dataset_that_is_removed_gives_its_quota_back(
    dlcmd: Dlcmd, directory: FolderDirectory, pets_id: str
) -> None:
    assert dlcmd("alloc", "set-cache", "cats", "12MiB").code == 3
    directory.allocate_cache_size("cats", "a" * 32, 12 * MIB, origin="hand")
    directory.allocate_cache_size("cats", "b" * 32, 12 * MIB, origin="hand")
    assert dlcmd("alloc", "set-cache", "cats", "none").code == 0
    assert not directory.decisions().caches


def test_remote_io_by_hand(dlcmd: Dlcmd, directory: FolderDirectory, url: str) -> None:
    reader = lease("resnet")
    directory.beat(reader, 60.0)
    directory.allocate_remote_io("resnet", 30e6, origin="allocator")
    found = dlcmd("alloc", "set-io", "resnet", "10MB/s")
    assert found.lines == ["resnet: 10.0 MiB/s, set by hand; 1 reader"]
    assert not found.err
    decision = directory.decisions().io_of("resnet")
    assert decision is not None
    assert decision.bytes_per_s == 10 * MIB
    [record] = dlcmd("alloc", "set-io", "resnet", "none", "--json").records
    assert (record["io_bytes_per_s"], record["origin"]) == (30e6, "allocator")
    directory.withdraw(reader.reader)


def test_a_job_that_nobody_reads_for_is_warned_of_and_0_is_the_floor(
    dlcmd: Dlcmd, directory: FolderDirectory, url: str
) -> None:
    found = dlcmd("alloc", "set-io", "absent", "0")
    assert found.lines == ["absent: 256 KiB/s, set by hand; 0 readers"]
    assert "no job gets less than 256 KiB/s" in found.err
    assert "no reader of absent is seen" in found.err
    assert dlcmd("alloc", "set-io", "", "5MB/s").code == 0
    assert directory.decisions().ios_in_force.keys() == {"absent", ""}


@pytest.mark.parametrize(
    ("job", "rate", "said"),
    [
        ("a", "10Mbps", "not in bits"),
        ("a", "80Mbit/s", "not in bits"),
        ("a", "nan", "it must be 0 or more"),
        ("a", "inf", "it must be 0 or more"),
        ("a", "-5MB/s", "it must be 0 or more"),
        ("a", "-1", "it must be 0 or more"),
        ("a", "fast", "is not a rate"),
        ("a", "9" * 400 + "MB/s", "is not a rate"),
        ("a", "100TB/s", "mistake of units"),
        ("a\nb", "5MB/s", "is not a name for a job"),
        ("a" * 129, "5MB/s", "is not a name for a job"),
    ],
)
def test_rates_that_are_none(
    dlcmd: Dlcmd, directory: FolderDirectory, url: str, job: str, rate: str, said: str
) -> None:
    refused = dlcmd("alloc", "set-io", job, rate)
    assert (refused.code, said in refused.err) == (2, True), refused.err
    assert not directory.decisions().ios


def test_a_job_is_declared_listed_and_taken_back(
    dlcmd: Dlcmd, directory: FolderDirectory, pets_id: str
) -> None:
    added = dlcmd("alloc", "job", "add", "resnet", "pets", "--speed", "114MB/s", "--passes", "90")
    assert added.code == 0, added.err
    [entry] = directory.jobs()
    assert (entry.job, entry.dataset_id, entry.passes) == ("resnet", pets_id, 90)
    assert entry.dataset_bytes > 300_000
    assert entry.submitted_s > 1e9
    listed = dlcmd("alloc", "job", "ls").lines
    assert listed[1].split()[:2] == ["resnet", "pets"]
    [record] = dlcmd("alloc", "job", "ls", "--json").records
    assert record["speed_bytes_per_s"] == 114 * MIB
    again = ("--speed", "50MB/s", "--gpus", "4", "--order", "draws", "--irregular")
    assert dlcmd("alloc", "job", "add", "resnet", "pets", *again).code == 0
    [entry] = directory.jobs()
    assert (entry.gpus, entry.order, entry.repeats_items, entry.regular) == (
        *(4, "draws", True, False),
    )
    assert dlcmd("alloc", "job", "rm", "resnet").code == 0
    assert not directory.jobs()
    assert "no job 'resnet' is declared" in dlcmd("alloc", "job", "rm", "resnet").err


def test_a_table_is_declared_as_a_whole_or_not_at_all(
    dlcmd: Dlcmd, directory: FolderDirectory, pets_id: str, tmp_path: Path
) -> None:
    lines = [HEADER, "a,pets,1.3TB,114MB/s,1,13,0,yes", "b,web,20.9TB,8MB/s,4,0.07,0,no"]
    table = tmp_path / "jobs.csv"
    for bad in ("c,web,0,8MB/s,1,1,0,yes", f"{'c' * 129},other,1TB,8MB/s,1,1,0,yes"):
        table.write_text("\n".join([*lines, bad]))
        assert dlcmd("alloc", "job", "add", "--table", table).code == 2
        assert not directory.jobs()
    table.write_text("\n".join(lines))
    found = dlcmd("alloc", "job", "add", "--table", table)
    assert found.code == 0
    assert "the store has no dataset web yet" in found.err
    first, second = directory.jobs()
    assert (first.dataset_id, second.dataset_id) == (pets_id, "0" * 32)
    assert (second.gpus, second.passes, second.regular) == (4, 0.07, False)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "JOB is not given"),
        (("a", "pets"), "--speed is not given"),
        (("a", "pets", "--speed", "1Gbps"), "not in bits"),
        (("a", "pets", "--speed", "nan"), "speed_bytes_per_s of nan"),
        (("a", "pets", "--speed", "1MB/s", "--passes", "0"), "passes of 0"),
        (("a", "pets", "--speed", "1MB/s", "--gpus", "-1"), "gpus of -1"),
        (("a", "pets", "--speed", "1MB/s", "--size", "0"), "dataset_bytes of 0"),
        (("a", "--table", "jobs.csv"), "--table has all jobs"),
        (("a", "web", "--speed", "1MB/s"), "there is no dataset 'web'"),
    ],
)
@pytest.mark.usefixtures("pets_id")
def test_bad_declarations(
    dlcmd: Dlcmd, directory: FolderDirectory, arguments: tuple[Any, ...], said: str
) -> None:
    refused = dlcmd("alloc", "job", "add", *arguments)
    assert (refused.code != 0, said in refused.err) == (True, True), refused.err
    assert not directory.jobs()
