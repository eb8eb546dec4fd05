"""The blob's law: a request is answered with all its bytes or with an error. EROFS would take what
is missing for zeros.

So a chunk that is damaged or gone costs exactly the files whose bytes lie in it, their neighbours
in the blob are read although the kernel's readahead crosses into them, and all of it heals without
a mount.
"""

import errno
import faulthandler
import mmap
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from chunkstore.chunk_id import ChunkId
from chunkstore.object_keys import chunk_key
from chunkstore.stores.local_directory import LocalDirectory
from dieselfs.client import Client
from metadata.kv.memory import MemoryStore
from metadata.snapshot import Snapshot
from tests.mount.mounting import Mount, mounted
from tests.mount.packing import PackedDataset, random_bytes

CHUNK_BYTES = 64 << 10
FILES = 200

pytestmark = pytest.mark.parametrize("kind", ["erofs", "erofs-loop", "fuse"], indirect=True)


def content(number: int) -> bytes:
    """Without a zero, so that none can be taken for the file's own; of sizes that leave padding, or
    none."""
    size = 4096 if number % 5 == 0 else 1 + number * 733 % 9000
    return random_bytes(size, seed=number).replace(b"\0", b"\1")


@dataclass(frozen=True)
class Dataset:
    packed: PackedDataset
    chunk_of: dict[str, ChunkId]

    def chunk_file(self, chunk: ChunkId) -> Path:
        return Path(LocalDirectory(self.packed.store)._path(chunk_key("law", chunk)))


@pytest.fixture
def dataset(tmp_path: Path) -> Dataset:
    store = LocalDirectory(tmp_path / "store")
    client = Client.connect(
        "law",
        store=store,
        index=MemoryStore(),
        create=True,
        snapshot_folder=tmp_path / "snapshots",
        target_bytes=CHUNK_BYTES,
        open_chunks=1,
    )
    with client:
        for number in range(FILES):
            client.put(content(number), f"d/{number}")
        path = client.save_meta()
    with Snapshot.open(path) as snapshot:
        chunk_of = {
            os.fsdecode(snapshot.path_of(inode)): snapshot.extent(inode).chunk.id
            for inode in range(snapshot.file_count)
        }
    return Dataset(PackedDataset(path, tmp_path / "store", Path("/nowhere")), chunk_of)


@pytest.fixture
def mount(dataset: Dataset, tmp_path: Path) -> Iterator[Mount]:
    with mounted(dataset.packed, tmp_path, "--cache-bytes", str(4 << 20)) as mount:
        yield mount
        assert "Traceback" not in mount.log


def whole(path: Path) -> bytes:
    return path.read_bytes()


def page_by_page(path: Path) -> bytes:
    with open(path, "rb", buffering=0) as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_SEQUENTIAL)
        return b"".join(iter(lambda: file.read(1000), b""))


def backwards(path: Path) -> bytes:
    fd = os.open(path, os.O_RDONLY)
    try:
        size = os.fstat(fd).st_size
        return b"".join(reversed([os.pread(fd, 1, at) for at in reversed(range(0, size))]))
    finally:
        os.close(fd)


def outcome(path: Path, read: Callable[[Path], bytes] = whole) -> bytes | int | None:
    try:
        return read(path)
    except OSError as error:
        return error.errno


def damage_middle_chunk(dataset: Dataset, mount: Mount, how: str) -> tuple[set[str], Path, bytes]:
    """The files of one chunk that nobody has read, which is damaged or removed; its file and what
    it held."""
    order = list(dict.fromkeys(dataset.chunk_of.values()))
    chunk = order[len(order) // 2]
    file = dataset.chunk_file(chunk)
    kept = file.read_bytes()
    if how == "missing":
        file.unlink()
    elif how == "cut off":
        file.write_bytes(kept[: len(kept) // 2])
    else:
        file.write_bytes(bytes(len(kept)))
    return {path for path, its in dataset.chunk_of.items() if its == chunk}, file, kept


@pytest.mark.parametrize("how", ["missing", "cut off", "zeros"])
@pytest.mark.parametrize("read", [whole, page_by_page])
def test_the_files_of_a_bad_chunk_and_no_others_are_eio_until_it_is_whole(
    dataset: Dataset, mount: Mount, how: str, read: Callable[[Path], bytes]
) -> None:
    hit, file, kept = damage_middle_chunk(dataset, mount, how)
    assert 3 < len(hit) < FILES / 3
    for _ in range(2):
        found = {path: outcome(mount.path / path, read) for path in dataset.chunk_of}
        errors = {path for path, result in found.items() if result == errno.EIO}
        if how == "cut off":  # what lies before the cut is there
            assert errors < hit
            assert list(found)[list(found).index(max(hit, key=list(found).index))] in errors
        else:
            assert errors == hit
        for path in set(found) - errors:
            assert found[path] == content(int(path[2:])), path
    file.write_bytes(kept)
    for path in dataset.chunk_of:
        assert (mount.path / path).read_bytes() == content(int(path[2:])), path


@pytest.mark.parametrize("how", ["missing", "zeros"])
def test_a_mapped_file_of_a_bad_chunk_is_an_error_and_its_neighbours_are_mapped(
    dataset: Dataset, mount: Mount, how: str
) -> None:
    hit, _, _ = damage_middle_chunk(dataset, mount, how)
    numbers = {number for number in range(FILES) if f"d/{number}" in hit}
    for number in sorted({n + d for n in numbers for d in (-3, -2, -1, 1, 2, 3)} - numbers):
        if not 0 <= number < FILES:
            continue
        with open(mount.path / f"d/{number}", "rb") as file:
            with mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as view:
                assert view[:] == content(number)
    victim = os.fork()  # an error of a mapping is a signal
    if not victim:
        faulthandler.disable()
        with open(mount.path / min(hit), "rb") as file:
            view = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
            os._exit(0 if view[0] else 1)
    _, status = os.waitpid(victim, 0)
    assert os.WIFSIGNALED(status)
    assert os.WTERMSIG(status) == 7, "SIGBUS"


@pytest.mark.parametrize("fault", ["corrupt", "unavailable", "missing", "short", "bug", "peek-bug"])
def test_a_source_that_fails_or_sends_too_little_is_eio_never_zeros(
    dataset: Dataset, tmp_path: Path, fault: str
) -> None:
    with mounted(dataset.packed, tmp_path, "--prefill-bytes", "0") as mount:
        mount.fail_with(fault)
        for number in (0, 7, 50, 51, 52, 199):
            assert outcome(mount.path / f"d/{number}") == errno.EIO
            assert outcome(mount.path / f"d/{number}", backwards) == errno.EIO
        mount.fail_with("")
        for number in range(FILES):
            assert (mount.path / f"d/{number}").read_bytes() == content(number)


def test_the_padding_between_files_is_never_shown(dataset: Dataset, mount: Mount) -> None:
    for number in range(FILES):
        path = mount.path / f"d/{number}"
        with open(path, "rb") as file:
            expected = content(number)
            assert os.pread(file.fileno(), 1 << 20, 0) == expected
            assert os.pread(file.fileno(), 100, len(expected)) == b""
            with mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as view:
                assert len(view) == len(expected)
