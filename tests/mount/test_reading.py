"""open, read, mmap: every byte that was packed, at any offset, and no other."""

import errno
import filecmp
import mmap
import os
import random
import subprocess
from pathlib import Path

import pytest

from tests.fork_server import FORK_SERVER
from tests.mount.conftest import ODD_NAMES, SIZES
from tests.mount.mounting import Mount, both_fronts, mounted
from tests.mount.packing import PackedDataset, random_bytes
from tests.mount.reading_processes import read_at_random

pytestmark = both_fronts


@pytest.mark.parametrize("size", SIZES)
def test_a_file_of_any_size_reads_as_it_was(sample_mount: Mount, size: int) -> None:
    path = sample_mount.path / "sizes" / str(size)
    assert path.stat().st_size == size
    assert path.read_bytes() == random_bytes(size)


@pytest.mark.parametrize("number", range(len(ODD_NAMES)))
def test_odd_names_are_found_and_read(sample_mount: Mount, number: int) -> None:
    path = os.path.join(os.fsencode(sample_mount.path), b"odd", ODD_NAMES[number])
    with open(path, "rb") as reading:
        assert reading.read() == random_bytes(500 + number)


def test_a_file_sixty_levels_down_is_read(sample_mount: Mount) -> None:
    path = sample_mount.path.joinpath("deep", *(f"level{n}" for n in range(60)), "bottom")
    assert path.read_bytes() == b"deep down"


def test_a_recursive_comparison_finds_no_difference(
    sample: PackedDataset, sample_mount: Mount
) -> None:
    subprocess.run(["diff", "-r", "-x.dieselfs", sample.source, sample_mount.path], check=True)


def test_rsync_finds_contents_modes_and_times_as_they_were(
    sample: PackedDataset, sample_mount: Mount
) -> None:
    command = ["rsync", "-rtpnc", "--delete", "--itemize-changes", "--exclude=/.dieselfs"]
    found = subprocess.run(
        [*command, f"{sample.source}/", f"{sample_mount.path}/"],
        check=True,
        capture_output=True,
        text=True,
    )
    assert found.stdout == ""


def test_tar_finds_nothing_different(
    sample: PackedDataset, sample_mount: Mount, tmp_path: Path
) -> None:
    archive = tmp_path / "sample.tar"
    owner = [f"--owner={os.getuid()}", f"--group={os.getgid()}", "--numeric-owner"]
    subprocess.run(["tar", "-cf", archive, *owner, "-C", sample.source, "."], check=True)
    subprocess.run(["tar", "-df", archive, "-C", sample_mount.path], check=True)


@pytest.mark.parametrize("size", [4097, 300 << 10, 5_000_000, 20 << 20])
def test_preads_anywhere_give_the_bytes_there(sample_mount: Mount, size: int) -> None:
    content = random_bytes(size)
    dice = random.Random(size)
    fd = os.open(sample_mount.path / "sizes" / str(size), os.O_RDONLY)
    try:
        for _ in range(300):
            start, length = dice.randrange(size + 5000), dice.randrange(1, 400_000)
            assert os.pread(fd, length, start) == content[start : start + length]
    finally:
        os.close(fd)


def test_reading_past_the_end_gives_nothing(sample_mount: Mount) -> None:
    fd = os.open(sample_mount.path / "sizes" / "4095", os.O_RDONLY)
    try:
        assert os.pread(fd, 100, 4095) == b""
        assert os.pread(fd, 100, 1 << 40) == b""
    finally:
        os.close(fd)


def test_reads_that_bypass_the_page_cache_are_exact_too(kind: str, sample_mount: Mount) -> None:
    path = sample_mount.path / "sizes" / "5000000"
    if kind == "erofs":  # the kernel refuses it where an image is a file
        with pytest.raises(OSError) as raised:
            os.open(path, os.O_RDONLY | os.O_DIRECT)
        assert raised.value.errno == errno.EINVAL
        return
    fd = os.open(path, os.O_RDONLY | os.O_DIRECT)
    try:
        buffer = mmap.mmap(-1, 1 << 20)
        got = os.preadv(fd, [buffer], 4 << 20)
        assert buffer[:got] == random_bytes(5_000_000)[4 << 20 :]
    finally:
        os.close(fd)


@pytest.mark.parametrize("size", [1, 4096, 5_000_000])
def test_a_file_can_be_mapped(sample_mount: Mount, size: int) -> None:
    with open(sample_mount.path / "sizes" / str(size), "rb") as reading:
        with mmap.mmap(reading.fileno(), 0, prot=mmap.PROT_READ) as view:
            assert view[:] == random_bytes(size)


def test_sendfile_and_copies_are_exact(sample_mount: Mount, tmp_path: Path) -> None:
    original = sample_mount.path / "sizes" / "5000000"
    subprocess.run(["cp", original, tmp_path / "copy"], check=True)
    assert filecmp.cmp(original, tmp_path / "copy", shallow=False)


def read_by_eight_processes(mount: Mount, source: Path) -> None:
    failures = FORK_SERVER.Queue()
    readers = [
        FORK_SERVER.Process(target=read_at_random, args=(mount.path, source, SIZES, seed, failures))
        for seed in range(8)
    ]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join()
    assert [reader.exitcode for reader in readers] == [0] * 8
    assert failures.empty()
    failures.close()
    failures.join_thread()


def test_eight_processes_reading_at_once_all_get_the_right_bytes(
    sample: PackedDataset, sample_mount: Mount
) -> None:
    read_by_eight_processes(sample_mount, sample.source)


def test_they_do_also_while_chunks_are_evicted(sample: PackedDataset, tmp_path: Path) -> None:
    with mounted(sample, tmp_path, "--cache-bytes", str(8 << 20)) as mount:
        read_by_eight_processes(mount, sample.source)
        assert mount.statistics()["cache"]["node"]["evictions"] > 0
