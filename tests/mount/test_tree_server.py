"""A packed dataset served in this process through /dev/fuse: names, attributes and bytes equal
those of the source.

The server's threads and the test share the interpreter's lock, so nothing here maps a file of the
mount.
"""

import errno
import json
import os
import stat
import subprocess
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
import xxhash

from chunkstore.chunk_reader import ChunkReader
from chunkstore.errors import Unavailable
from chunkstore.stores.local_directory import LocalDirectory
from dieselfs.cache.node.task_folder import TaskFolder
from dieselfs.cache.task.node_memory import NodeMemory
from dieselfs.fuse.control.control_files import ControlDirectory
from dieselfs.fuse.mounts import fusermount
from dieselfs.fuse.mounts.mount_syscalls import attach, detach, new_mount
from dieselfs.fuse.requests.attributes import Owner
from dieselfs.fuse.requests.file_reader import FileReader
from dieselfs.fuse.requests.kernel_connection import KernelConnection
from dieselfs.fuse.requests.pending_reads import PendingReads
from dieselfs.fuse.serving.tree_server import TreeServer
from dieselfs.shuffle.shuffle_lists import ShuffleLists
from metadata.snapshot import Snapshot
from tests.eventually import PATIENCE_S
from tests.mount.conftest import ODD_NAMES, SIZES
from tests.mount.packing import PackedDataset, random_bytes

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0 or not Path("/dev/fuse").exists(), reason="mounts as root"
)
OWNER = Owner(1234, 4321)


@dataclass
class Served:
    path: Path
    snapshot: Snapshot
    connection: KernelConnection
    reader: FileReader
    faults: list[Exception]
    """While there is one, reads of the source fail with it."""


class FaultySource:
    def __init__(self, memory: NodeMemory, faults: list[Exception]) -> None:
        self._memory, self._faults = memory, faults

    def __getattr__(self, name: str) -> object:
        return getattr(self._memory, name)

    def peek(self, *arguments: object) -> object:
        return None if self._faults else self._memory.peek(*arguments)  # type: ignore[arg-type]

    def read(self, *arguments: object) -> object:
        if self._faults:
            raise self._faults[0]
        return self._memory.read(*arguments)  # type: ignore[arg-type]


def mount_by_system_calls(fd: int, path: Path) -> None:
    options = [
        *(("source", "dieselfs:test"), ("subtype", "dieselfs"), ("fd", str(fd))),
        *(("rootmode", "40000"), ("user_id", "0"), ("group_id", "0")),
        *(("allow_other", None), ("default_permissions", None)),
    ]
    mount = new_mount("fuse", options)
    try:
        attach(mount, path)
    finally:
        os.close(mount)


def mount_by_fusermount(path: Path) -> int:
    options = ["fsname=dieselfs:a,b", "subtype=dieselfs", "ro", "default_permissions"]
    return fusermount.mount(path, [*options, "allow_other"])


@contextmanager
def served(packed: PackedDataset, path: Path, *, by_fusermount: bool = False) -> Iterator[Served]:
    path.mkdir()
    task = TaskFolder.at(f"test-{os.getpid()}-{path.parent.name}")
    with Snapshot.open(packed.snapshot) as snapshot:
        store = ChunkReader(LocalDirectory(packed.store), snapshot.dataset)
        memory = NodeMemory.open(task, store, budget_bytes=256 << 20, lead=True)
        pending, control_threads = PendingReads(), PendingReads(4)
        faults: list[Exception] = []
        reader = FileReader(FaultySource(memory, faults), pending)  # type: ignore[arg-type]
        if by_fusermount:
            fd = mount_by_fusermount(path)
        else:
            fd = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
            mount_by_system_calls(fd, path)
        connection = KernelConnection(fd, is_tree=True)
        documents = {b"stats.json": lambda: json.dumps(connection.counts).encode()}
        control = ControlDirectory(documents, ShuffleLists(), snapshot)
        connection.start(TreeServer(connection, snapshot, OWNER, reader, control, control_threads))
        try:
            yield Served(path, snapshot, connection, reader, faults)
        finally:
            detach(path)
            ended = connection.stop(PATIENCE_S)
            os.close(fd)
            pending.close()
            control_threads.close()
            memory.close()
        assert ended


@pytest.fixture(scope="module")
def tree(sample: PackedDataset, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served(sample, tmp_path_factory.mktemp("tree-server") / "mnt") as found:
        yield found


def test_names_modes_times_and_bytes_are_those_of_the_source(
    sample: PackedDataset, tree: Served
) -> None:
    subprocess.run(["diff", "-r", sample.source, tree.path], check=True)
    command = ["rsync", "-rtpnc", "--delete", "--itemize-changes"]
    found = subprocess.run(
        [*command, f"{sample.source}/", f"{tree.path}/"], check=True, capture_output=True
    )
    assert found.stdout == b""


def test_attributes_are_those_of_the_source(sample: PackedDataset, tree: Served) -> None:
    seen = set()
    for top, directories, files in os.walk(os.fsencode(sample.source)):
        below = os.path.relpath(top, os.fsencode(sample.source))
        for name in (*directories, *files, b"."):
            wanted = os.lstat(os.path.join(top, name))
            found = os.lstat(os.path.join(os.fsencode(tree.path), below, name))
            assert found.st_mode == wanted.st_mode
            assert found.st_mtime_ns == found.st_ctime_ns == wanted.st_mtime_ns
            assert (found.st_uid, found.st_gid) == (OWNER.uid, OWNER.gid)
            if stat.S_ISREG(wanted.st_mode):
                size = found.st_size
                assert (size, found.st_blocks) == (wanted.st_size, (size + 511) // 512)
                assert found.st_ino not in seen
                seen.add(found.st_ino)
            else:
                assert found.st_nlink == wanted.st_nlink
    assert os.lstat(tree.path).st_ino == 1


@pytest.mark.parametrize("size", SIZES)
def test_any_range_of_any_size_is_read(tree: Served, size: int) -> None:
    content = random_bytes(size)
    fd = os.open(tree.path / "sizes" / str(size), os.O_RDONLY)
    try:
        for start in (0, size // 2, max(size - 1, 0), size, size + 5000, 1 << 40):
            for length in (1, 4096, 100_000, size + 1):
                assert os.pread(fd, length, start) == content[start : start + length]
    finally:
        os.close(fd)


def test_odd_names_are_found_and_absent_ones_are_not(tree: Served) -> None:
    folder = os.path.join(os.fsencode(tree.path), b"odd")
    for number, name in enumerate(ODD_NAMES):
        assert os.stat(os.path.join(folder, name)).st_size == 500 + number
    for name, number in ((b"absent", errno.ENOENT), (b"y" * 256, errno.ENAMETOOLONG)):
        with pytest.raises(OSError) as raised:
            os.stat(os.path.join(folder, name))
        assert raised.value.errno == number


def test_known_and_absent_names_are_asked_for_once(tree: Served) -> None:
    paths = [tree.path / "class" / "c1" / name for name in ("0001.bin", "absent")]
    for path in paths:
        path.exists()
    before = Counter(tree.connection.counts)
    for _ in range(100):
        for path in paths:
            path.exists()
    asked = Counter(tree.connection.counts)
    asked.subtract(before)
    del asked["forget"]  # of what the kernel knows from other tests
    assert asked.total() < 10, "a kernel that is short of memory may drop these two names, too"


def test_open_flush_and_opendir_are_asked_for_once(tree: Served) -> None:
    for path in (tree.path / "class" / "c2").iterdir():
        path.read_bytes()
    counts = tree.connection.counts
    assert [counts.get(kind) for kind in ("open", "opendir", "flush")] == [1, 1, 1]
    assert counts.get("release", 0) == counts.get("releasedir", 0) == 0


def test_every_change_is_refused(tree: Served) -> None:
    for change in (
        lambda: os.open(tree.path / "nanoseconds", os.O_WRONLY),
        lambda: os.open(tree.path / "new", os.O_WRONLY | os.O_CREAT),
        lambda: os.mkdir(tree.path / "new"),
        lambda: os.unlink(tree.path / "nanoseconds"),
        lambda: os.chmod(tree.path / "nanoseconds", 0o777),
        lambda: os.truncate(tree.path / ".dieselfs" / "stats.json", 0),
    ):
        with pytest.raises(OSError) as raised:
            change()
        assert raised.value.errno == errno.EROFS


def test_statfs_and_extended_attributes(tree: Served) -> None:
    found, snapshot = os.statvfs(tree.path), tree.snapshot
    assert found.f_files == snapshot.file_count + snapshot.directory_count
    assert found.f_blocks * found.f_frsize - snapshot.total_bytes in range(found.f_frsize)
    assert (found.f_bfree, found.f_ffree, found.f_namemax) == (0, 0, 255)
    path = tree.path / "sizes" / "4097"
    assert sorted(os.listxattr(path)) == ["user.dieselfs.chunk", "user.dieselfs.xxh3"]
    digest = xxhash.xxh3_64_hexdigest(random_bytes(4097)).encode()
    assert os.getxattr(path, "user.dieselfs.xxh3") == digest
    for name in ("empty", ".dieselfs", ".dieselfs/stats.json", ""):
        assert os.listxattr(tree.path / name) == []
        for attribute, number in (
            ("system.posix_acl_access", errno.ENOTSUP),
            ("security.capability", errno.ENOTSUP),
            ("user.other", errno.ENODATA),
        ):
            with pytest.raises(OSError) as raised:
                os.getxattr(tree.path / name, attribute)
            assert raised.value.errno == number


def test_the_control_directory_is_inside_and_not_listed(tree: Served) -> None:
    control = tree.path / ".dieselfs"
    assert ".dieselfs" not in os.listdir(tree.path)
    assert os.listdir(control) == ["stats.json", "shuffle", "plan", "why"]
    kinds = {entry.name: entry.is_dir(follow_symlinks=False) for entry in os.scandir(control)}
    assert kinds == {"stats.json": False, "shuffle": True, "plan": True, "why": True}
    first = os.stat(control / "stats.json")
    for _ in range(20):
        with open(control / "stats.json", "rb") as reading:
            content = reading.read()
            assert len(content) == os.fstat(reading.fileno()).st_size
        json.loads(content)
    assert os.stat(control / "stats.json").st_ino != first.st_ino
    assert b"seed=1" in (control / "shuffle" / "README").read_bytes()
    for name, number in (
        ("absent", errno.ENOENT),
        ("shuffle/seed=x", errno.EINVAL),
        ("shuffle/seed=1", errno.ENOTSUP),  # a name of this dataset holds a newline
    ):
        with pytest.raises(OSError) as raised:
            os.stat(control / name)
        assert raised.value.errno == number


def test_many_readers_get_the_right_bytes(small: PackedDataset, tmp_path: Path) -> None:
    paths = [path.relative_to(small.source) for path in small.source.rglob("*") if path.is_file()]
    wanted = {path: (small.source / path).read_bytes() for path in paths}
    with served(small, tmp_path / "mnt") as found:
        with ThreadPoolExecutor(8) as threads:
            for _ in range(3):
                contents = threads.map(lambda path: (found.path / path).read_bytes(), paths)
                assert list(contents) == [wanted[path] for path in paths]
        assert found.reader.statistics().bytes_read >= sum(map(len, wanted.values()))


def test_a_failed_read_is_eio_and_heals(small: PackedDataset, tmp_path: Path) -> None:
    with served(small, tmp_path / "mnt") as found:
        found.faults.append(Unavailable("out, because the test says so"))
        with pytest.raises(OSError) as raised:
            (found.path / "large").read_bytes()
        assert raised.value.errno == errno.EIO
        found.faults.clear()
        assert (found.path / "large").read_bytes() == random_bytes(3_000_000)


def test_a_list_is_complete_and_keeps_its_inode(small: PackedDataset, tmp_path: Path) -> None:
    with served(small, tmp_path / "mnt") as found:
        shuffle = found.path / ".dieselfs" / "shuffle"
        with open(shuffle / "seed=3", "rb") as reading:
            lines = reading.read().splitlines()
            assert os.fstat(reading.fileno()).st_ino == os.stat(shuffle / "epoch=0,seed=3").st_ino
        assert len(lines) == 101
        for line in lines:
            with open(os.path.join(os.fsencode(found.path), line), "rb") as reading:
                reading.read()


def test_another_server_goes_on_with_the_connection(small: PackedDataset, tmp_path: Path) -> None:
    """The process that takes a connection over sees no INIT; names, open files and documents go
    on."""
    with served(small, tmp_path / "mnt") as found:
        first = found.connection
        reading = os.open(found.path / "large", os.O_RDONLY)
        os.pread(reading, 4096, 0)
        (found.path / ".dieselfs" / "stats.json").read_bytes()
        assert first.stop(PATIENCE_S)
        second = KernelConnection(first.fd, is_tree=True)
        pool, pending = PendingReads(4), PendingReads(4)
        documents = {b"stats.json": lambda: b"second"}
        control = ControlDirectory(documents, ShuffleLists(), found.snapshot)
        reader = FileReader(found.reader._source, pending)
        second.start(TreeServer(second, found.snapshot, OWNER, reader, control, pool))
        try:
            assert os.pread(reading, 3_000_000, 0) == random_bytes(3_000_000)
            assert (found.path / ".dieselfs" / "stats.json").read_bytes() == b"second"
            assert len(list(found.path.rglob("*"))) == 106
            assert (found.path / "d1" / "1").read_bytes() == random_bytes(2001)
            assert second.agreed is None
        finally:
            os.close(reading)
            detach(found.path)
            assert second.stop(PATIENCE_S)
            pool.close()
            pending.close()
            mount_by_system_calls_again(found.path)


def mount_by_system_calls_again(path: Path) -> None:
    """Something for the context manager to detach."""
    subprocess.run(["mount", "-t", "tmpfs", "none", path], check=True)


def test_the_same_by_fusermount(small: PackedDataset, tmp_path: Path) -> None:
    with served(small, tmp_path / "mnt", by_fusermount=True) as found:
        subprocess.run(["diff", "-r", small.source, found.path], check=True)
        assert b" - fuse.dieselfs dieselfs:a,b " in Path("/proc/self/mountinfo").read_bytes()
