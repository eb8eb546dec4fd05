"""`dlcmd alloc show`: the tables, one job with its readers, the reasons in words, and records."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dieselfs.allocation.directory.folder import FolderDirectory
from tests.dieselfs.allocation.made_leases import DATASET_BYTES, entry, lease
from tests.dieselfs.cli.conftest import Dlcmd

MIB, GIB = 1 << 20, 1 << 30
ID = "1" * 32


@pytest.fixture
def directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, url: str
) -> Iterator[FolderDirectory]:
    monkeypatch.setenv("DIESELFS_MEMORY_FOLDER", str(tmp_path))
    made = FolderDirectory(tmp_path / f"dieselfs-allocations-{os.geteuid()}")
    yield made
    for each in made.leases():
        made.withdraw(each.reader)


def reads(directory: FolderDirectory, job: str, **fields: Any) -> None:
    directory.beat(lease(job, **fields), 60.0)


@pytest.fixture
def half_cached(directory: FolderDirectory) -> FolderDirectory:
    """A job on two nodes, half of whose dataset is cached and a quarter effective."""
    for host, used in (("node1", 5 * MIB), ("node2", 10 * MIB)):
        reads(
            directory,
            "resnet",
            host=host,
            allowed_bytes_per_s=10.0 * MIB,
            used_bytes_per_s=float(used),
            bound=0.4,
            held_bytes=DATASET_BYTES // 2,
            effective_bytes=DATASET_BYTES // 4,
            region_bytes=4 * MIB,
            speed_bytes_per_s=50.0 * MIB,
            epoch=1,
            epoch_read_bytes=DATASET_BYTES // 4,
        )
    directory.allocate_remote_io("resnet", 20.0 * MIB, origin="allocator")
    directory.allocate_cache_size("imagenet", ID, DATASET_BYTES * 3 // 4, origin="hand")
    return directory


def test_nothing_is_there(dlcmd: Dlcmd, directory: FolderDirectory) -> None:
    found = dlcmd("alloc", "show")
    assert (found.code, found.out) == (0, b"")
    assert "no job reads, is declared or has a decision" in found.err
    assert dlcmd("alloc", "show", "--json").records == []
    assert "no job 'resnet' reads" in dlcmd("alloc", "show", "resnet").err


def test_jobs_with_their_remote_io_and_cache(dlcmd: Dlcmd, half_cached: FolderDirectory) -> None:
    half_cached.put_job(entry("bert", dataset="web", dataset_id="2" * 32))
    half_cached.allocate_remote_io("gpt", 1.0 * MIB, origin="hand")
    reads(half_cached, "", speed_bytes_per_s=3.0 * MIB, speed_is_bound=True)
    io, cache = dlcmd("alloc", "show").out.decode().split("\n\n")
    rows = {line.split("  ")[0]: line.split()[1:] for line in io.splitlines()[2:]}
    used = "2 100 MiB/s 20.0 MiB/s 15.0 MiB/s 40% allocator"
    assert " ".join(rows["resnet"][:-2]) == used
    assert rows["bert"] == ["0", "95.4", "MiB/s", "no", "limit", "-", "-", "none", "-"]
    assert rows["gpt"][:3] == ["0", "-", "1.0"]
    assert "≥ 3.0 MiB/s" in io
    assert "(no job)" in io
    [row] = [line.split() for line in cache.splitlines() if line.split()[:1] == ["resnet"]]
    assert " ".join(row[1:-2]) == "imagenet 1.0 GiB 768 MiB 512 MiB 256 MiB hand"
    assert not any("gpt" in line for line in cache.splitlines())


def test_everything_fits_a_terminal_of_80_columns(half_cached: FolderDirectory) -> None:
    half_cached.put_job(entry("sweep-12-of-resnet50-on-openimages-v7", dataset="openimages-v7"))
    half_cached.allocate_remote_io("a-job", 999.0 * MIB, origin="allocator")
    command = f"stty cols 80; {sys.executable} -m dieselfs alloc show --explain"
    found = subprocess.run(
        ["script", "-qec", command, "/dev/null"], capture_output=True, check=True
    )
    lines = found.stdout.decode().replace("\r", "").splitlines()
    assert max(map(len, lines)) <= 80
    assert any("sweep-12-of-resnet50" in line for line in lines)


def test_a_job_with_its_readers_by_node(dlcmd: Dlcmd, half_cached: FolderDirectory) -> None:
    lines = dlcmd("alloc", "show", "resnet").lines
    assert lines[0].split() == ["job:", "resnet"]
    assert "20.0 MiB/s, set by the allocator" in lines[3]
    assert "quota 768 MiB, set by hand" in lines[4]
    first, second = lines[-2:]
    assert first.split()[0] == "node1"
    assert second.split()[0] == "node2"
    assert "5.0 MiB/s" in first
    assert "10.0 MiB/s" in second


def test_the_reasons_in_words(dlcmd: Dlcmd, half_cached: FolderDirectory) -> None:
    reads(half_cached, "other", dataset="web", dataset_id="2" * 32, speed_bytes_per_s=9.0 * MIB)
    half_cached.allocate_remote_io("other", 30.0 * MIB, origin="allocator")
    half_cached.allocate_cache_size("web", "2" * 32, 64 * MIB, origin="allocator")
    text = " ".join(dlcmd("alloc", "show", "resnet", "--explain").lines)
    assert "answers 25% of its reads, and the rest arrives at 20.0 MiB/s: remote IO limits" in text
    assert "One more GiB of cache would bring it" in text
    assert "one more MiB/s of remote IO 1.3 MiB/s" in text
    assert "The most remote IO is 30.0 MiB/s, of 1 job." in text
    assert "Cache is with web (64.0 MiB" in text
    # Half of the dataset is left of the epoch: 512 MiB at 26.7 MiB/s.
    assert "Of 512 MiB cached, 256 MiB are not effective until its next epoch" in text
    assert "begins in about 19 s at this rate" in text
    assert "256 MiB more fit its quota" in text
    [record] = dlcmd("alloc", "show", "resnet", "--explain", "--json").records
    assert record["limited_by"] == "io"
    assert record["explanation"][0] in text
    half_cached.allocate_cache_size("imagenet", ID, DATASET_BYTES // 4, origin="hand")
    text = " ".join(dlcmd("alloc", "show", "resnet", "--explain").lines)
    assert "256 MiB above its quota are evicted within 10 s" in text


def test_what_is_not_known_is_said(dlcmd: Dlcmd, directory: FolderDirectory) -> None:
    reads(directory, "waits", speed_bytes_per_s=9.0 * MIB, speed_is_bound=True, starved=0.8)
    reads(directory, "new")
    directory.put_job(entry("absent"))
    why = {
        record["job"]: " ".join(record["explanation"])
        for record in dlcmd("alloc", "show", "--explain", "--json").records
    }
    assert "no limit, as nothing is decided on it. Its reads wait all the time" in why["waits"]
    assert "Its ideal rate is not known: it has read 9.0 MiB/s" in why["waits"]
    assert "Its reads waited 80% of the last seconds though its budget did not bind" in why["waits"]
    assert "It has read nothing yet" in why["new"]
    assert "No reader of it is seen" in why["absent"]


def test_records(dlcmd: Dlcmd, half_cached: FolderDirectory) -> None:
    [record] = dlcmd("alloc", "show", "--json").records
    assert record["io_bytes_per_s"] == 20 * MIB
    assert (record["io_origin"], record["cache_origin"]) == ("allocator", "hand")
    assert record["used_bytes_per_s"] == 15 * MIB
    assert (record["quota_bytes"], record["held_bytes"]) == (768 * MIB, 512 * MIB)
    assert record["effective_bytes"] == 256 * MIB
    assert 0 <= record["io_age_s"] < 600
    assert [reader["host"] for reader in record["readers"]] == ["node1", "node2"]
    assert record["readers"][0]["allowed_bytes_per_s"] == 10 * MIB


def test_it_repeats_until_it_is_interrupted(half_cached: FolderDirectory) -> None:
    arguments = [sys.executable, "-m", "dieselfs", "alloc", "show", "--refresh", "0.1", "--json"]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE) as shown:
        assert shown.stdout is not None
        first, second = shown.stdout.readline(), shown.stdout.readline()
        shown.send_signal(signal.SIGINT)
        shown.stdout.read()
    assert first[:18] == second[:18] == b'{"job": "resnet", '


def test_it_goes_on_while_the_directory_is_away(half_cached: FolderDirectory) -> None:
    arguments = [sys.executable, "-m", "dieselfs", "alloc", "show", "--refresh", "0.1"]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True) as shown:
        assert shown.stdout is not None
        lines = iter(shown.stdout)
        assert next(lines) == "remote IO:\n"
        (half_cached.folder / "decisions.json").rename(half_cached.folder / "kept")
        (half_cached.folder / "decisions.json").mkdir()
        assert any("readers keep what they have" in line for line in lines)
        (half_cached.folder / "decisions.json").rmdir()
        (half_cached.folder / "kept").rename(half_cached.folder / "decisions.json")
        assert any(line == "remote IO:\n" for line in lines)
        shown.send_signal(signal.SIGINT)
        shown.stdout.read()
