"""A mount that takes a newer snapshot: paths lead to the new one, what is held stays what it was,
and nothing is ever a mix."""

import json
import mmap
import os
import random
import signal
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from dieselfs.cache.node.task_folder import TaskFolder
from dieselfs.fuse.mounts.mount_table import MountState, entry_at
from metadata.snapshot import Snapshot
from tests.eventually import eventually
from tests.mount.mounting import (
    PATIENCE_S,
    Mount,
    both_fronts,
    is_alive,
    listed,
    mounted,
    names_in,
    state_of,
    walked,
)
from tests.mount.packing import BASE_TIME_NS, PackedDataset, random_bytes
from tests.mount.test_control_directory import expected_list
from tests.mount.versions import Files, Versions, pack_versions

pytestmark = both_fronts

CROWD = 3000
REFRESHES = 20
STEP_S = 0.001
"""The pause of a reader between two reads. Without it readers take the processor from the
refresh."""

BEFORE: Files = {
    "same": b"the same in both",
    "changed": random_bytes(200_000, seed=1),
    "removed": b"in the old one only",
    "file to directory": b"a file",
    "directory to file/inside": b"in a directory",
    "removed directory/inside": b"old",
    "kept directory/same": b"the same in both",
    "kept directory/changed": random_bytes(50_000, seed=1),
    "kept directory/removed": b"old",
    "kept directory/deep/er/file": b"old and deep",
}
AFTER: Files = {
    "same": b"the same in both",
    "changed": random_bytes(300_000, seed=2),
    "added": b"in the new one only",
    "file to directory/inside": b"no file any more",
    "directory to file": b"no directory any more",
    "added directory/inside": b"new",
    "kept directory/same": b"the same in both",
    "kept directory/changed": random_bytes(40_000, seed=2),
    "kept directory/added": b"new",
    "kept directory/deep/er/file": b"new and deep",
}


@pytest.fixture(scope="module")
def versions(tmp_path_factory: pytest.TempPathFactory) -> Versions:
    return pack_versions(BEFORE, AFTER, tmp_path_factory.mktemp("versions"))


@pytest.fixture
def mount(versions: Versions, tmp_path: Path) -> Iterator[Mount]:
    with mounted(versions.before, tmp_path) as mount:
        yield mount
        assert "Traceback" not in mount.log


@pytest.fixture(scope="module")
def crowds(tmp_path_factory: pytest.TempPathFactory) -> Versions:
    """Roots of thousands of names. Half of the names are in both."""
    old = {f"{n:05}": b"old" for n in range(CROWD)}
    new = {f"{n:05}": b"newer" for n in range(CROWD // 2, CROWD // 2 + CROWD)}
    return pack_versions(old, new, tmp_path_factory.mktemp("crowds"))


@pytest.fixture
def crowded(crowds: Versions, tmp_path: Path) -> Iterator[Mount]:
    with mounted(crowds.before, tmp_path) as mount:
        yield mount


def tree(top: Path) -> Files:
    """All files with what reads say, checked against what `stat` says."""
    found = {}
    for at, _, names in walked(top):
        for name in names:
            path = at / name
            content = path.read_bytes()
            assert path.stat().st_size == len(content)
            found[str(path.relative_to(top))] = content
    return found


def of_the_dataset(names: list[str]) -> list[str]:
    return sorted(name for name in names if name != ".dieselfs")


def directories(files: Files) -> set[str]:
    return {str(parent) for path in files for parent in Path(path).parents}


def test_all_paths_lead_to_the_new_snapshot(mount: Mount, versions: Versions) -> None:
    assert tree(mount.path) == BEFORE  # and now the kernel knows every name
    mount.refresh(versions.after.snapshot)
    assert tree(mount.path) == AFTER
    for path in set(BEFORE) | directories(BEFORE):
        expected = path in AFTER or path in directories(AFTER)
        assert (mount.path / path).exists() == expected, path
    assert (mount.path / "changed").stat().st_mtime_ns == BASE_TIME_NS + 1


def test_an_unmount_after_a_refresh_leaves_nothing_in_node_memory(
    versions: Versions, tmp_path: Path
) -> None:
    """The new server, which nobody has read through, removes what the former one has cached."""
    task = TaskFolder.at(f"refreshed-{os.getpid()}")
    with mounted(versions.before, tmp_path, "--task", task.path.name) as mount:
        assert tree(mount.path) == BEFORE
        assert any(task.chunks.iterdir())
        mount.refresh(versions.after.snapshot)
    assert not task.path.exists()


def test_a_path_asked_for_first_after_a_refresh_is_new(mount: Mount, versions: Versions) -> None:
    mount.refresh(versions.after.snapshot)
    assert (mount.path / "kept directory" / "changed").read_bytes() == random_bytes(40_000, seed=2)
    assert not (mount.path / "removed").exists()


def test_names_that_were_absent_are_found(mount: Mount, versions: Versions) -> None:
    for name in ("added", "added directory/inside", "kept directory/added"):
        assert not (mount.path / name).exists()
    mount.refresh(versions.after.snapshot)
    for name in ("added", "added directory/inside", "kept directory/added"):
        assert (mount.path / name).read_bytes() == AFTER[name]


def test_the_control_directory_shows_the_new_snapshot(mount: Mount, versions: Versions) -> None:
    lists = mount.path / ".dieselfs" / "shuffle"
    with open(lists / "seed=1", "rb") as kept:
        mount.refresh(versions.after.snapshot)
        with Snapshot.open(versions.after.snapshot) as snapshot:
            shown = mount.control("dataset.json")
            assert (shown["snapshot"], shown["generation"]) == (snapshot.id, snapshot.generation)
            assert shown["snapshot_file"] == str(versions.after.snapshot)
        assert kept.read() == expected_list(versions.before, "seed=1")
        assert (lists / "seed=1").read_bytes() == expected_list(versions.after, "seed=1")
    found = listed(mount.path)
    assert (found.state, found.snapshot) == (MountState.SERVING, shown["snapshot"])


def test_an_open_file_keeps_its_bytes(mount: Mount, versions: Versions) -> None:
    old = BEFORE["changed"]
    fd = os.open(mount.path / "changed", os.O_RDONLY)
    try:
        assert os.pread(fd, 1000, 0) == old[:1000]
        mount.refresh(versions.after.snapshot)
        assert (mount.path / "changed").read_bytes() == AFTER["changed"]
        assert os.pread(fd, 1 << 20, 0) == old
        assert os.fstat(fd).st_size == len(old)
        with open(f"/proc/self/fd/{fd}", "rb") as again:
            assert again.read() == old
    finally:
        os.close(fd)


def test_a_mapped_file_keeps_its_bytes(mount: Mount, versions: Versions) -> None:
    with open(mount.path / "kept directory" / "changed", "rb") as reading:
        with mmap.mmap(reading.fileno(), 0, prot=mmap.PROT_READ) as view:
            mount.refresh(versions.after.snapshot)
            view.madvise(mmap.MADV_DONTNEED)
            assert view[:] == BEFORE["kept directory/changed"]


@pytest.mark.parametrize("listed_before", [True, False])
def test_an_open_directory_keeps_its_names_and_files(
    mount: Mount, versions: Versions, listed_before: bool
) -> None:
    fd = os.open(mount.path / "kept directory", os.O_RDONLY | os.O_DIRECTORY)
    try:
        if listed_before:
            os.listdir(fd)
        mount.refresh(versions.after.snapshot)
        assert tree(mount.path) == AFTER
        os.lseek(fd, 0, os.SEEK_SET)
        assert set(os.listdir(fd)) == {"same", "changed", "removed", "deep"}
        for name in ("changed", "removed", "deep/er/file"):
            opened = os.open(name, os.O_RDONLY, dir_fd=fd)
            try:
                assert os.read(opened, 1 << 20) == BEFORE[f"kept directory/{name}"]
            finally:
                os.close(opened)
        with pytest.raises(FileNotFoundError):
            os.stat("added", dir_fd=fd)
    finally:
        os.close(fd)


def test_a_working_directory_that_is_gone_can_still_be_read(
    mount: Mount, versions: Versions, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(mount.path / "removed directory")
    mount.refresh(versions.after.snapshot)
    assert os.listdir(".") == ["inside"]
    assert Path("inside").read_bytes() == b"old"
    assert Path("../changed").read_bytes() == BEFORE["changed"], "above it is the old root"


def test_files_of_two_snapshots_are_never_taken_for_one(mount: Mount, versions: Versions) -> None:
    """Each snapshot that is in use has a device number of its own."""

    def identities() -> set[tuple[int, int]]:
        found = [(mount.path / path).stat() for path in ("same", "changed", "kept directory")]
        return {(status.st_dev, status.st_ino) for status in found}

    seen = identities()
    with ExitStack() as held:
        for packed in (versions.after, versions.before, versions.after):
            held.enter_context(open(mount.path / "same", "rb"))
            mount.refresh(packed.snapshot)
            assert not seen & identities()
            seen |= identities()


def test_the_old_server_ends_by_itself_when_its_last_file_is_closed(
    mount: Mount, versions: Versions
) -> None:
    old = mount.server_pid
    with open(mount.path / "changed", "rb") as kept:
        mount.refresh(versions.after.snapshot)
        assert mount.server_pid != old
        (mount.path / "changed").read_bytes()
        assert is_alive(old)
        assert kept.read() == BEFORE["changed"]
    eventually(lambda: not is_alive(old), "the end of the old server")
    assert tree(mount.path) == AFTER
    eventually(lambda: all(map(is_alive, mount.servers())), "only processes that run")


def test_an_old_server_that_is_killed_is_replaced_too(mount: Mount, versions: Versions) -> None:
    old = mount.server_pid
    with open(mount.path / "changed", "rb") as kept:
        assert kept.read(10) == BEFORE["changed"][:10]
        mount.refresh(versions.after.snapshot)
        os.kill(old, signal.SIGKILL)
        kept.seek(0)
        assert kept.read() == BEFORE["changed"]
        assert tree(mount.path) == AFTER
        assert mount.control("refresh.json")["error"] is None


def test_an_old_server_that_is_killed_after_the_end_of_its_front_leaves_none(
    mount: Mount, versions: Versions
) -> None:
    """The kernel tells of the end once, and the open control directory outlasts it."""
    is_erofs = listed(mount.path).is_erofs
    control = os.open(mount.path / ".dieselfs", os.O_RDONLY | os.O_DIRECTORY)
    try:
        mount.refresh(versions.after.snapshot)
        [old] = set(mount.servers()) - {mount.server_pid}

        def releases() -> int:
            with open(os.open("stats.json", os.O_RDONLY, dir_fd=control), "rb") as document:
                return json.load(document)["requests"].get("release", 0)

        if is_erofs:
            eventually(releases, "the end of its front")
        os.kill(old, signal.SIGKILL)
        eventually(lambda: not is_alive(old), "its end")
    finally:
        os.close(control)
    eventually(lambda: mount.servers() == [mount.server_pid], "only the new server")
    assert tree(mount.path) == AFTER


def test_an_open_list_of_the_old_control_directory_can_be_read(
    mount: Mount, versions: Versions
) -> None:
    lists = mount.path / ".dieselfs" / "shuffle"
    with open(lists / "seed=1", "rb") as kept:
        mount.refresh(versions.after.snapshot)
        assert kept.read() == expected_list(versions.before, "seed=1")


@pytest.mark.parametrize("listed_meanwhile", [0, 3])
def test_a_listing_of_the_root_is_of_one_snapshot(
    crowded: Mount, crowds: Versions, listed_meanwhile: int
) -> None:
    with os.scandir(crowded.path) as listing:
        names = [next(listing).name]
        crowded.refresh(crowds.after.snapshot)
        for _ in range(listed_meanwhile):  # the kernel may keep these listings
            assert sorted(names_in(crowded.path)) == sorted(crowds.files_after)
        names += [entry.name for entry in listing]
    assert of_the_dataset(names) == sorted(crowds.files_before)
    # What that listing said after the refresh has not brought back an old name.
    for n in (0, CROWD // 2 - 1, CROWD // 2, CROWD - 1, CROWD, CROWD // 2 + CROWD - 1):
        path = crowded.path / f"{n:05}"
        if n < CROWD // 2:
            assert not path.exists()
        else:
            assert (path.stat().st_size, path.read_bytes()) == (5, b"newer")
    assert sorted(names_in(crowded.path)) == sorted(crowds.files_after)
    assert tree(crowded.path) == crowds.files_after


def test_a_listing_of_the_root_outlasts_several_refreshes(crowded: Mount, crowds: Versions) -> None:
    with os.scandir(crowded.path) as first:
        names = [next(first).name]
        crowded.refresh(crowds.after.snapshot)
        with os.scandir(crowded.path) as second:
            later = [next(second).name]
            crowded.refresh(crowds.before.snapshot)
            later += [entry.name for entry in second]
        crowded.refresh(crowds.after.snapshot)
        names += [entry.name for entry in first]
    assert of_the_dataset(names) == sorted(crowds.files_before)
    assert of_the_dataset(later) == sorted(crowds.files_after)
    assert tree(crowded.path) == crowds.files_after


def test_a_descriptor_of_the_root_keeps_the_old_one(crowded: Mount, crowds: Versions) -> None:
    fd = os.open(crowded.path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        assert sorted(names_in(fd)) == sorted(crowds.files_before)
        crowded.refresh(crowds.after.snapshot)
        os.lseek(fd, 0, os.SEEK_SET)
        assert sorted(names_in(fd)) == sorted(crowds.files_before)
        assert sorted(names_in(crowded.path)) == sorted(crowds.files_after)
    finally:
        os.close(fd)


def test_the_present_snapshot_is_refreshed_by_nothing_newer(mount: Mount) -> None:
    os.kill(mount.pid, signal.SIGUSR1)
    eventually(lambda: mount.control("refresh.json")["attempts"] == 1, "the end of a refresh")
    assert mount.control("refresh.json") == {"attempts": 1, "running": False, "error": None}
    assert "is the newest" in mount.log
    assert tree(mount.path) == BEFORE


def test_what_fails_leaves_the_mount_as_it_is(
    versions: Versions, tmp_path: Path, small: PackedDataset
) -> None:
    content = bytearray(versions.after.snapshot.read_bytes())
    content[-1] ^= 1
    damaged = tmp_path / "damaged.snapshot"
    damaged.write_bytes(content)
    with mounted(versions.before, tmp_path) as mount:
        shown = mount.control("dataset.json")["snapshot"]
        for snapshot, complaint in (
            (damaged, "hash"),
            (tmp_path / "absent", "No such file"),
            (small.snapshot, "of another dataset"),
        ):
            error = mount.attempt_refresh(snapshot)
            assert error is not None
            assert complaint in error
            assert complaint in mount.log
            assert mount.control("dataset.json")["snapshot"] == shown
            assert tree(mount.path) == BEFORE
        mount.refresh(versions.after.snapshot)
        assert tree(mount.path) == AFTER


def test_many_signals_at_once_are_handled_one_after_the_other(
    mount: Mount, versions: Versions
) -> None:
    mount.next.write_text(str(versions.after.snapshot))
    for _ in range(50):
        os.kill(mount.pid, signal.SIGUSR1)
    eventually(lambda: mount._refreshes()["attempts"], "the end of a refresh")
    assert tree(mount.path) == AFTER


def test_a_refresh_that_is_asked_for_during_another_one_follows_it(
    mount: Mount, versions: Versions
) -> None:
    startup = mount.faults.with_name("startup")
    startup.write_text("stopped")
    first = mount.servers()
    os.kill(mount.pid, signal.SIGUSR1)
    eventually(lambda: set(mount.servers()) - set(first), "a server for the refresh")
    [second] = set(mount.servers()) - set(first)
    eventually(lambda: state_of(second) == "T", "one that looks later")
    os.kill(mount.pid, signal.SIGUSR1)
    startup.write_text("")
    os.kill(second, signal.SIGCONT)  # it finds nothing
    eventually(lambda: mount.control("refresh.json")["attempts"] == 2, "both refreshes")
    assert tree(mount.path) == BEFORE


def test_a_mount_can_end_while_it_is_refreshed(crowds: Versions, tmp_path: Path) -> None:
    for round_ in range(5):
        with mounted(crowds.before, tmp_path / str(round_)) as mount:
            os.listdir(mount.path)
            mount.next.write_text(str(crowds.after.snapshot))
            os.kill(mount.pid, signal.SIGUSR1)
            os.kill(mount.pid, signal.SIGTERM)
            mount.wait_until_ended()
            assert entry_at(mount.path) is None
            assert "Traceback" not in mount.log


class Readers:
    """Threads that read paths of a dataset that is one of two versions, and what they found
    wrong."""

    def __init__(self, mount: Path, contents: tuple[Files, Files], count: int) -> None:
        self._mount = mount
        self._contents = contents
        self._ended = threading.Event()
        self.refreshes_begun = self.refreshes_reported = 0
        self.wrong: list[str] = []
        self.reads = 0
        self._threads = [threading.Thread(target=self._run, args=(n,)) for n in range(count)]

    def __enter__(self) -> "Readers":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        for thread in self._threads:
            thread.join(PATIENCE_S)

    def _run(self, seed: int) -> None:
        dice = random.Random(seed)
        paths = sorted({*self._contents[0], *self._contents[1]})
        while not self._ended.wait(STEP_S) and not self.wrong:
            path = dice.choice(paths)
            try:
                self._check(path)
            except Exception as error:
                self.wrong.append(f"{path}: {error!r}")
            self.reads += 1

    def _check(self, path: str) -> None:
        reported = self.refreshes_reported
        found = self._content(path)
        possible = range(reported, self.refreshes_begun + 1)
        if not any(found == self._contents[number % 2].get(path) for number in possible):
            self.wrong.append(f"{path} after {reported} refreshes: {found and found[:20]!r}")

    def _content(self, path: str) -> bytes | None:
        try:
            with open(self._mount / path, "rb") as reading:
                size = os.fstat(reading.fileno()).st_size
                content = reading.read()
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
            return None
        if size != len(content):
            raise ValueError(f"{len(content)} bytes of {size}")
        return content


def test_readers_see_one_version_or_the_other_while_refreshes_happen(
    mount: Mount, versions: Versions
) -> None:
    with Readers(mount.path, (BEFORE, AFTER), count=4) as readers:
        for number in range(1, REFRESHES + 1):
            packed = versions.after if number % 2 else versions.before
            readers.refreshes_begun = number
            mount.refresh(packed.snapshot)
            readers.refreshes_reported = number
            if readers.wrong:
                break
            enough = readers.reads + 50
            eventually(lambda enough=enough: readers.reads >= enough or readers.wrong, "reads")
    assert readers.wrong == []
    assert readers.reads > 50 * REFRESHES
