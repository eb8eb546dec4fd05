"""opendir, readdir, releasedir: complete, in a stable order, with attributes, for concurrent
readers."""

import os
import subprocess
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from dieselfs.dataset.dataset_writer import DatasetWriter
from tests.mount.mounting import Mount, both_fronts, mounted
from tests.mount.packing import BASE_TIME_NS, PackedDataset, pack_written

pytestmark = both_fronts

MANY = 20_000


@pytest.fixture(scope="module")
def crowded(tmp_path_factory: pytest.TempPathFactory) -> PackedDataset:
    def write(writer: DatasetWriter) -> None:
        for n in range(MANY):
            writer.put(b"all/file-%05d" % n, b"%d" % n)
        for n in range(50):
            writer.put_directory(b"all/directory-%05d" % n, 0o755, BASE_TIME_NS)

    return pack_written(write, tmp_path_factory.mktemp("crowded"))


@pytest.fixture
def crowded_mount(crowded: PackedDataset, tmp_path: Path) -> Iterator[Mount]:
    with mounted(crowded, tmp_path) as mount:
        yield mount


def test_the_whole_tree_is_listed(sample: PackedDataset, sample_mount: Mount) -> None:
    def tree(top: Path) -> dict[bytes, tuple[list[bytes], list[bytes]]]:
        root = os.fsencode(top)
        return {
            os.path.relpath(at, root): (sorted(directories), sorted({*files} - {b".dieselfs"}))
            for at, directories, files in os.walk(root)
        }

    assert tree(sample_mount.path) == tree(sample.source)


def test_a_listing_tells_files_from_directories(sample_mount: Mount) -> None:
    with os.scandir(sample_mount.path) as entries:
        for entry in entries:
            if entry.name == ".dieselfs":
                continue
            assert entry.is_dir(follow_symlinks=False) == os.path.isdir(entry.path)
            assert entry.inode() == os.stat(entry.path).st_ino


def test_who_walks_or_scans_passes_the_control_directory_by(
    kind: str, sample: PackedDataset, sample_mount: Mount
) -> None:
    """With FUSE it is not listed; before EROFS it is listed as what is neither a file nor a
    directory."""
    root, control = sample_mount.path, sample_mount.path / ".dieselfs"
    with os.scandir(root) as entries:
        listed = {entry.name: (entry.is_dir(), entry.is_file()) for entry in entries}
    assert listed.pop(".dieselfs", (False, False)) == (False, False)
    assert set(listed) == set(os.listdir(sample.source))
    assert not any(".dieselfs" in directories for _, directories, _ in os.walk(root))
    for what in ("f", "d"):
        found = subprocess.run(
            ["find", root, "-type", what, "-path", "*.dieselfs*"], capture_output=True, check=True
        )
        assert found.stdout == b""
    listing = subprocess.run(["ls", root], capture_output=True, check=True, text=True)
    assert ".dieselfs" not in listing.stdout
    assert list(control.glob("*.json"))
    assert (control / "stats.json").read_bytes()


def test_an_empty_directory_lists_nothing(sample_mount: Mount) -> None:
    assert os.listdir(sample_mount.path / "empty") == []


def test_a_large_directory_is_listed_completely_by_concurrent_readers(crowded_mount: Mount) -> None:
    expected = sorted(
        [f"file-{n:05}" for n in range(MANY)] + [f"directory-{n:05}" for n in range(50)]
    )
    with ThreadPoolExecutor(6) as readers:
        listings = list(readers.map(os.listdir, [crowded_mount.path / "all"] * 6))
    for listing in listings:
        assert sorted(listing) == expected


def test_the_order_of_a_listing_never_changes(crowded_mount: Mount) -> None:
    assert os.listdir(crowded_mount.path / "all") == os.listdir(crowded_mount.path / "all")


def test_attributes_come_with_the_listing(crowded_mount: Mount) -> None:
    before = crowded_mount.statistics()["requests"]
    subprocess.run(["ls", "-l", crowded_mount.path / "all"], check=True, stdout=subprocess.DEVNULL)
    after = crowded_mount.statistics()["requests"]
    asked = Counter(after)
    asked.subtract(before)
    # A kernel that evicts inodes meanwhile distrusts the answer under way, of hundreds of entries.
    answers = 1 + asked["forget"] + asked["batch_forget"]
    # After the first ENOTSUP `ls` asks for no more extended attributes on this device.
    for request in ("getattr", "lookup", "getxattr"):
        assert asked[request] < answers * MANY // 20


def test_a_directory_can_be_read_again_from_the_start(sample_mount: Mount) -> None:
    fd = os.open(sample_mount.path / "class" / "c0", os.O_RDONLY | os.O_DIRECTORY)
    try:
        first = os.listdir(fd)
        os.lseek(fd, 0, os.SEEK_SET)
        assert os.listdir(fd) == first
        assert len(first) == 43
    finally:
        os.close(fd)
