"""A blob on an SSD holds every byte of a snapshot where the kernel looks for it, whatever happens
while it is written."""

from __future__ import annotations

import errno
import os
import signal
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest

from chunkstore.chunk_reader import ChunkReader
from chunkstore.chunk_source import ChunkRef, ChunkSource, FileExtent
from chunkstore.errors import NotFound
from chunkstore.stores.local_directory import LocalDirectory
from dieselfs.cache.ssd.blob import (
    check_blob,
    find_blob,
    pinned_mounts,
    remove_blob,
    remove_blobs,
    write_blob,
)
from dieselfs.cache.ssd.pin import pin_mount
from dieselfs.cache.ssd.settings import SsdSettings, end_tiers
from dieselfs.cache.ssd.usage import TierAccess
from dieselfs.cache.warmup.ssd_warmup import ssd_warm_up
from dieselfs.cache.warmup.wanted_chunks import wanted_chunks
from dieselfs.errors import Conflict, LocalFileError, Refused
from dieselfs.snapshots.expected_files import ExpectedFiles
from metadata.blob_layout import BLOCK_BYTES, DEVICE_BLOCKS, BlobLayout
from metadata.snapshot import Snapshot
from tests.forked_programs import run_forked
from tests.mount.packing import PackedDataset, pack, random_bytes, write_file

SIZES = [0, 1, 4095, 4096, 4097, 100_000, (256 << 10) + 1, 5_000_000, (17 << 20) + 3]
DEVICES = pytest.mark.parametrize("device_blocks", [DEVICE_BLOCKS, 6000, 4353])
"""One device, two, and as many as a blob of the largest file's size allows."""


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> PackedDataset:
    folder = tmp_path_factory.mktemp("packed")
    for size in SIZES:
        write_file(folder / "source/sizes" / str(size), random_bytes(size))
    for n in range(600):
        size = [4096, 8192, 0, 1 + n * 37][n % 4]
        write_file(folder / "source/many" / f"{n:03}", random_bytes(size, seed=n))
    for n in range(3):
        write_file(folder / "source/large" / str(n), random_bytes(6_000_000 + n))
    return pack(folder / "source", folder)


@pytest.fixture
def snapshot(packed: PackedDataset) -> Iterator[Snapshot]:
    with Snapshot.open(packed.snapshot) as snapshot:
        yield snapshot


class Counted:
    """A `ChunkSource` that notes the chunks it was asked for, and fails when told so."""

    def __init__(self, packed: PackedDataset, snapshot: Snapshot) -> None:
        reader = ChunkReader(
            LocalDirectory(packed.store), snapshot.dataset, ExpectedFiles(snapshot)
        )
        self._source: ChunkSource = reader
        self.asked: set[ChunkRef] = set()
        self.fails_after = 1 << 30

    def payload(self, chunk: ChunkRef) -> memoryview:
        self._note(chunk)
        return self._source.payload(chunk)

    def read(self, file: FileExtent, start: int, length: int) -> memoryview:
        self._note(file.chunk)
        return self._source.read(file, start, length)

    def _note(self, chunk: ChunkRef) -> None:
        self.asked.add(chunk)
        if len(self.asked) > self.fails_after:
            raise NotFound(f"chunk {chunk.id} is lost, because the test says so")


@pytest.fixture
def source(packed: PackedDataset, snapshot: Snapshot) -> Counted:
    return Counted(packed, snapshot)


def require_content(
    packed: PackedDataset, snapshot: Snapshot, folder: Path, device_blocks: int = DEVICE_BLOCKS
) -> None:
    paths = find_blob(folder, snapshot, device_blocks)
    assert paths is not None
    layout = BlobLayout.of(snapshot, device_blocks)
    blobs = [path.read_bytes() for path in paths]
    assert [len(blob) for blob in blobs] == [
        layout.device_bytes(device) for device in range(layout.device_count)
    ]
    expected = [bytearray(len(blob)) for blob in blobs]
    for inode in range(snapshot.file_count):
        content = (packed.source / os.fsdecode(snapshot.path_of(inode))).read_bytes()
        if content:
            start = layout.start_byte(inode)
            expected[layout.device_of(inode)][start : start + len(content)] = content
    assert blobs == [bytes(blob) for blob in expected]


@DEVICES
def test_every_byte_lies_where_the_layout_says(
    packed: PackedDataset,
    snapshot: Snapshot,
    source: Counted,
    tmp_path: Path,
    device_blocks: int,
) -> None:
    told: list[tuple[int, int]] = []
    report = write_blob(
        snapshot, source, tmp_path, lambda *done: told.append(done), device_blocks=device_blocks
    )
    require_content(packed, snapshot, tmp_path, device_blocks)
    assert (report.chunks, report.chunks_before) == (snapshot.chunk_count, 0)
    assert [sum(column) for column in zip(*told, strict=True)] == [
        snapshot.chunk_count,
        snapshot.total_bytes,
    ]
    count = BlobLayout.of(snapshot, device_blocks).device_count
    assert len(report.paths) == count
    assert (count > 1) == (device_blocks != DEVICE_BLOCKS)
    assert sorted(path.name for path in (tmp_path / "blobs").iterdir()) == sorted(
        [*(path.name for path in report.paths), f"{report.paths[0].name}.json"]
    )
    assert check_blob(snapshot, report.paths, device_blocks=device_blocks) == []
    source.asked.clear()
    write_blob(snapshot, source, tmp_path, device_blocks=device_blocks)
    assert source.asked == set()


def test_a_dataset_without_bytes(tmp_path: Path) -> None:
    write_file(tmp_path / "source/empty", b"")
    packed = pack(tmp_path / "source", tmp_path)
    with Snapshot.open(packed.snapshot) as snapshot:
        report = write_blob(snapshot, Counted(packed, snapshot), tmp_path / "ssd")
        assert report.paths[0].read_bytes() == bytes(BLOCK_BYTES)
        assert check_blob(snapshot, report.paths) == []


_KILLED = """
import os, signal, sys
from pathlib import Path
from dieselfs.cache.ssd import blob as blob_module
from metadata.snapshot import Snapshot
from tests.dieselfs.cache.ssd.test_blob import Counted
from tests.mount.packing import PackedDataset
packed = PackedDataset(*map(Path, sys.argv[1:4]))
blob_module._STEP_BYTES = 1 << 20
with Snapshot.open(packed.snapshot) as snapshot:
    def advance(chunks, size):
        done.append(chunks)
        if len(done) >= int(sys.argv[5]):
            os.kill(os.getpid(), signal.SIGKILL)
    done = []
    source, folder, jobs = Counted(packed, snapshot), Path(sys.argv[4]), int(sys.argv[6])
    blob_module.write_blob(snapshot, source, folder, advance, jobs=jobs)
"""


@pytest.mark.parametrize(("after", "jobs"), [(1, 2), (4, 1), (4, 2), (6, 2)])
def test_a_killed_writer_is_followed_by_one_that_goes_on(
    packed: PackedDataset,
    snapshot: Snapshot,
    source: Counted,
    tmp_path: Path,
    after: int,
    jobs: int,
) -> None:
    arguments = [packed.snapshot, packed.store, packed.source, tmp_path, after, jobs]
    command = [sys.executable, "-c", _KILLED, *map(str, arguments)]
    killed = run_forked(command, env=os.environ)
    assert killed.returncode == -signal.SIGKILL
    assert find_blob(tmp_path, snapshot) is None
    [left] = pinned_mounts(tmp_path)
    assert (left.dataset, left.snapshot, left.is_complete) == ("sample", snapshot.id, False)
    report = write_blob(snapshot, source, tmp_path)
    require_content(packed, snapshot, tmp_path)
    # A second job may write all later chunks while the first one writes one; those do not count.
    assert (after if jobs == 1 else 0) <= report.chunks_before <= after + jobs - 1
    assert len(source.asked) == snapshot.chunk_count - report.chunks_before


def test_a_lost_chunk_ends_it_and_the_next_call_goes_on(
    packed: PackedDataset, snapshot: Snapshot, source: Counted, tmp_path: Path
) -> None:
    source.fails_after = snapshot.chunk_count - 2
    with pytest.raises(NotFound):
        write_blob(snapshot, source, tmp_path, jobs=1)
    assert find_blob(tmp_path, snapshot) is None
    source.fails_after, source.asked = 1 << 30, set()
    report = write_blob(snapshot, source, tmp_path, jobs=1)
    assert report.chunks_before == snapshot.chunk_count - 2
    assert len(source.asked) == 2
    require_content(packed, snapshot, tmp_path)


def test_one_that_was_killed_while_it_was_published(
    packed: PackedDataset, snapshot: Snapshot, source: Counted, tmp_path: Path
) -> None:
    report = write_blob(snapshot, source, tmp_path, device_blocks=6000)
    record = Path(f"{report.paths[0]}.json")
    document = record.read_text().rstrip("}") + f', "chunks_done": {snapshot.chunk_count}}}'
    (record.parent / f".{record.name.removesuffix('.blob.json')}.progress").write_text(document)
    record.unlink()
    report.paths[1].rename(record.parent / f".{report.paths[1].name}.incomplete")
    assert find_blob(tmp_path, snapshot, 6000) is None
    source.asked.clear()
    write_blob(snapshot, source, tmp_path, device_blocks=6000)
    assert source.asked == set()
    require_content(packed, snapshot, tmp_path, 6000)


@DEVICES
def test_a_check_names_the_files_that_are_damaged(
    snapshot: Snapshot, source: Counted, tmp_path: Path, device_blocks: int
) -> None:
    report = write_blob(snapshot, source, tmp_path, device_blocks=device_blocks)
    layout = BlobLayout.of(snapshot, device_blocks)
    hit = []
    places = [
        (b"sizes/1", 0),
        (b"sizes/4097", 4096),
        (b"sizes/4095", 4095),  # between two files
        (b"sizes/5000000", 4_999_999),
        (b"many/004", 4095),
        (b"sizes/17825795", 9 << 20),
        (b"sizes/17825795", 17_825_795),  # behind its end
    ]
    for path, at in places:
        inode = snapshot.resolve(path)
        assert inode is not None
        blob = report.paths[layout.device_of(inode)]
        blob.chmod(0o600)
        with open(blob, "r+b", buffering=0) as file:
            file.seek(layout.start_byte(inode) + at)
            [byte] = file.read(1)
            file.seek(-1, os.SEEK_CUR)
            file.write(bytes([byte ^ 1]))
            os.fsync(file.fileno())
        hit.append(inode)
    found = check_blob(snapshot, report.paths, device_blocks=device_blocks)
    assert sorted(found) == sorted(set(hit))


def test_a_disk_that_is_too_small_is_left_as_it_was(
    snapshot: Snapshot, source: Counted, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "dieselfs.cache.ssd.blob.os.statvfs",
        lambda path: SimpleNamespace(f_bavail=2000, f_frsize=4096),
    )
    with pytest.raises(LocalFileError, match=r"needs \S+ MiB, and the disk has 7.8 MiB free"):
        write_blob(snapshot, source, tmp_path)
    assert list((tmp_path / "blobs").iterdir()) == []
    assert source.asked == set()


def test_a_disk_that_others_fill_meanwhile(
    snapshot: Snapshot, source: Counted, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(fd: int, start: int, size: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("dieselfs.cache.ssd.blob.os.posix_fallocate", full)
    with pytest.raises(LocalFileError, match="the disk has"):
        write_blob(snapshot, source, tmp_path)
    assert list((tmp_path / "blobs").iterdir()) == []


def test_only_what_is_sound_and_ones_own_is_found(
    snapshot: Snapshot, source: Counted, tmp_path: Path
) -> None:
    report = write_blob(snapshot, source, tmp_path)
    [blob] = report.paths
    assert find_blob(tmp_path, snapshot) == [blob]
    blob.chmod(0o620)
    assert find_blob(tmp_path, snapshot) is None  # others may write to it
    blob.chmod(0o600)
    os.truncate(blob, blob.stat().st_size - 1)
    assert find_blob(tmp_path, snapshot) is None
    write_blob(snapshot, source, tmp_path)
    record = Path(f"{blob}.json")
    record.write_text(record.read_text().replace(snapshot.dataset.id.hex(), "00" * 16))
    assert find_blob(tmp_path, snapshot) is None  # a dataset of the same name


def test_two_processes_do_not_write_one_blob(
    snapshot: Snapshot, source: Counted, tmp_path: Path
) -> None:
    class Second(Counted):
        def payload(self, chunk: ChunkRef) -> memoryview:
            with pytest.raises(Conflict):
                write_blob(snapshot, self, tmp_path)
            tried.append(chunk)
            return self._source.payload(chunk)

    tried: list[ChunkRef] = []
    source.__class__ = Second
    write_blob(snapshot, source, tmp_path)
    assert tried


@pytest.fixture
def another_writer(
    snapshot: Snapshot, source: Counted, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When `source` is first asked, the blob is removed, and another writer begins it again and
    ends early."""
    payload = source.payload
    has_begun: list[bool] = []

    def after_another(chunk: ChunkRef) -> memoryview:
        if not has_begun:
            has_begun.append(True)
            assert remove_blob(tmp_path, snapshot) > 0
            source.fails_after = 1
            with pytest.raises(NotFound):
                write_blob(snapshot, source, tmp_path, jobs=1)
            source.fails_after = 1 << 30
        return payload(chunk)

    monkeypatch.setattr(source, "payload", after_another)


@pytest.mark.usefixtures("another_writer")
def test_one_that_is_removed_while_it_is_written_is_not_published(
    packed: PackedDataset, snapshot: Snapshot, source: Counted, tmp_path: Path
) -> None:
    with pytest.raises(LocalFileError, match="was removed while it was written"):
        write_blob(snapshot, source, tmp_path, jobs=1)
    assert find_blob(tmp_path, snapshot) is None
    write_blob(snapshot, source, tmp_path)
    require_content(packed, snapshot, tmp_path)


@pytest.mark.usefixtures("another_writer")
def test_the_progress_of_one_that_is_removed_is_not_that_of_the_next(
    packed: PackedDataset, snapshot: Snapshot, source: Counted, tmp_path: Path
) -> None:

    def stop(chunks: int, size_bytes: int) -> None:
        if len(source.asked) > snapshot.chunk_count // 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_blob(snapshot, source, tmp_path, stop, jobs=1)
    write_blob(snapshot, source, tmp_path)
    require_content(packed, snapshot, tmp_path)


def test_what_is_removed_is_gone(snapshot: Snapshot, source: Counted, tmp_path: Path) -> None:
    removals: list[Callable[[], int]] = [
        partial(remove_blob, tmp_path, snapshot),
        partial(remove_blobs, tmp_path, snapshot.dataset.name),
    ]
    for remove in removals:
        report = write_blob(snapshot, source, tmp_path, device_blocks=6000)
        (tmp_path / "blobs/other-1-00.blob").touch()
        assert [of.bytes for of in pinned_mounts(tmp_path)] == [report.bytes]
        assert remove() >= snapshot.total_bytes
        assert [path.name for path in (tmp_path / "blobs").iterdir()] == ["other-1-00.blob"]
        assert remove() == 0


def test_it_counts_against_the_size_of_the_tier(
    packed: PackedDataset, snapshot: Snapshot, tmp_path: Path
) -> None:
    store = LocalDirectory(packed.store)
    with pytest.raises(Refused, match=r"needs 43\.0 MiB, but .* of the 40\.0 MiB"):
        pin_mount(snapshot, store, SsdSettings(tmp_path, 40 << 20))
    assert not (tmp_path / "blobs").exists()
    settings = SsdSettings(tmp_path, 120 << 20)
    end_tiers()
    pin_mount(snapshot, store, settings)
    require_content(packed, snapshot, tmp_path)
    assert TierAccess(settings).usage().used_bytes == 0  # nothing is kept twice
    end_tiers()


class CountedStore(LocalDirectory):
    """A store that counts the chunks it gives."""

    gets = 0

    def get(self, key: str) -> bytes:
        self.gets += 1
        return super().get(key)


def test_what_the_tier_has_is_read_there(
    packed: PackedDataset, snapshot: Snapshot, tmp_path: Path
) -> None:
    settings, store = SsdSettings(tmp_path, 200 << 20), CountedStore(packed.store)
    ssd_warm_up(store, snapshot.dataset, settings, wanted_chunks(snapshot)).run(lambda *done: None)
    store.gets = 0
    pin_mount(snapshot, store, settings)
    # A tier that is slow on a busy machine is passed by for a second.
    assert store.gets < snapshot.chunk_count // 2
    require_content(packed, snapshot, tmp_path)
    end_tiers()
