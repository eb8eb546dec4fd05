from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from chunkstore.errors import AlreadyExists, Denied, NotFound, StoreFull, Unavailable
from chunkstore.stores.local_directory import LocalDirectory
from tests.contracts.object_store_contract import (
    KEY,
    OpenStore,
    SharedObjectStoreContract,
    keys,
)

ORDINARY_USER = 65534


class TestLocalDirectory(SharedObjectStoreContract):
    @pytest.fixture
    def open_store(self, tmp_path: Path) -> OpenStore:
        return lambda: LocalDirectory(tmp_path / "store")


@pytest.fixture
def store(tmp_path: Path) -> LocalDirectory:
    return LocalDirectory(tmp_path / "store")


def files_below(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def test_keys_fan_out(store: LocalDirectory) -> None:
    """No folder grows with the number of chunks: 256 of them share."""
    for number in range(600):
        store.create(f"d/chunks/{number}", [b""])
    folders = [path for path in (store.root / "d/chunks").iterdir() if path.is_dir()]
    assert 200 < len(folders) <= 256
    assert max(len(list(folder.iterdir())) for folder in folders) < 12
    assert len(keys(store, "d/chunks/")) == 600


def test_a_component_may_be_named_like_a_fan_out_folder(store: LocalDirectory) -> None:
    store.create("a/one", [b"1"])
    fan = Path(files_below(store.root)[0]).parent.name
    assert len(fan) == 2
    store.create(f"a/{fan}/two", [b"2"])
    assert keys(store, "a/") == sorted(["a/one", f"a/{fan}/two"])
    assert keys(store, f"a/{fan}/") == [f"a/{fan}/two"]


@pytest.mark.parametrize("prefix", ["d/leases/", "d/leases/one/"])
def test_a_listing_shows_a_number_of_a_lease_that_is_renewed_meanwhile(
    store: LocalDirectory, monkeypatch: pytest.MonkeyPatch, prefix: str
) -> None:
    """Else its mount looks like one that has ended, and gc deletes what it reads."""
    store.create("d/leases/one/1", [b"x"])
    stat = os.stat

    def renewed(path: str, **options: object) -> os.stat_result:
        if str(path).endswith("/1"):
            store.create("d/leases/one/2", [b"x"])
            store.delete("d/leases/one/1")
        return stat(path, **options)  # type: ignore[arg-type]

    monkeypatch.setattr("os.stat", renewed)
    assert [info.key for info in store.list(prefix)] == ["d/leases/one/2"]


def test_no_temporary_file_stays(store: LocalDirectory) -> None:
    store.create(KEY, [b"x"])
    with pytest.raises(AlreadyExists):
        store.create(KEY, [b"y"])
    with pytest.raises(ZeroDivisionError):
        store.create("d/other", (b"%d" % (1 // number) for number in (1, 0)))
    assert len(files_below(store.root)) == 1


def test_what_killed_processes_left_is_removed_after_a_day(store: LocalDirectory) -> None:
    store.create(KEY, [b"x"])
    old, new = store.root / ".temporary/old", store.root / ".temporary/new"
    old.write_bytes(b"x")
    new.write_bytes(b"x")
    os.utime(old, (0, 0))
    assert keys(store) == [KEY]
    LocalDirectory(store.root).create("d/other", [b"x"])
    assert not old.exists()
    assert new.exists()  # somebody may still be writing it


def test_folders_and_object_are_synced_in_order(
    store: LocalDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Content before the name, every folder that holds a new name, and also what another process
    made and may not have synced."""
    other = LocalDirectory(store.root)
    other.create("d/chunks/first", [b"x"])
    done: list[str] = []
    fsync, link = os.fsync, os.link
    monkeypatch.setattr(
        os, "fsync", lambda fd: (done.append(os.readlink(f"/proc/self/fd/{fd}")), fsync(fd))
    )
    monkeypatch.setattr(os, "link", lambda *names: (done.append("link"), link(*names)))
    store.create("d/chunks/first-too", [b"x"])
    root = str(store.root)
    folder = next(path for path in files_below(store.root) if path.endswith("first-too"))
    folders = [str(store.root.parent), root, f"{root}/d", f"{root}/d/chunks"]
    assert done[:4] == folders
    assert done[4].startswith(f"{root}/.temporary/")
    assert done[5:] == ["link", os.path.dirname(f"{root}/{folder}")]
    done.clear()
    store.create("d/chunks/first-too-2", [b"x"])
    assert not set(done) & set(folders[:3]), "once per process"


class TestNoStore:
    """A wrong --store must not look like an empty store."""

    def test_absent_folder(self, store: LocalDirectory) -> None:
        for call in (store.get, store.stat, lambda key: list(store.list(key + "/"))):
            with pytest.raises(Unavailable, match="no store at"):
                call(KEY)

    def test_a_new_store_is_told(self, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
        for key in ("a", "b"):
            LocalDirectory(tmp_path / "shared").create(key, [b"x"])
        assert caplog.messages == [f"created a new store at {tmp_path / 'shared'}"]

    def test_absent_parent(self, tmp_path: Path) -> None:
        store = LocalDirectory(tmp_path / "absent/store")
        with pytest.raises(Unavailable, match="parent folder does not exist"):
            store.create(KEY, [b"x"])
        assert not (tmp_path / "absent").exists()

    def test_a_file(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_bytes(b"x")
        store = LocalDirectory(tmp_path / "file")
        for call in (
            lambda: store.create(KEY, [b"x"]),
            lambda: store.get(KEY),
            lambda: list(store.list("")),
        ):
            with pytest.raises(Unavailable):
                call()

    def test_a_store_that_vanishes(self, store: LocalDirectory) -> None:
        store.create(KEY, [b"x"])
        subprocess.run(["rm", "-r", store.root], check=True)
        with pytest.raises(Unavailable):
            store.create("datasets/d/chunks/two", [b"x"])
        with pytest.raises(Unavailable):
            store.get(KEY)


@pytest.fixture
def tiny(tmp_path: Path) -> Iterator[Path]:
    """A file system of 1 MiB."""
    point = tmp_path / "tiny"
    point.mkdir()
    mounted = (
        os.geteuid() == 0
        and not subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=1m,mode=755", "none", point], capture_output=True
        ).returncode
    )
    if not mounted:
        pytest.skip("FULL DISK NOT TESTED: this user may not mount a small file system")
    yield point
    subprocess.run(["umount", point], check=True)


class TestFullDisk:
    def test_store_full_and_nothing_visible(self, tiny: Path) -> None:
        store = LocalDirectory(tiny / "store")
        store.create("d/first", [bytes(100_000)])
        before = files_below(tiny)
        for parts in ([bytes(2 << 20)], (bytes(1000) for _ in range(3000))):
            with pytest.raises(StoreFull, match="free space"):
                store.create("d/second", parts)
            assert keys(store) == ["d/first"]
            assert files_below(tiny) == before
        store.create("d/second", [bytes(100_000)])

    def test_no_inodes(self, tiny: Path) -> None:
        subprocess.run(["mount", "-o", "remount,nr_inodes=8", tiny], check=True)
        store = LocalDirectory(tiny / "store")
        with pytest.raises(StoreFull):
            create_some(store, 8)
        assert all(store.get(key) == b"x" for key in keys(store))


def create_some(store: LocalDirectory, count: int) -> None:
    for number in range(count):
        store.create(f"{number}/{number}", [b"x"])


def as_ordinary_user(action: Callable[[], None]) -> bool:
    """Whether `action` passed in a child without privileges (root may read and write anything)."""
    child = os.fork()
    if child == 0:  # pragma: no cover
        code = 1
        try:
            if os.geteuid() == 0:
                os.setgroups([])
                os.setgid(ORDINARY_USER)
                os.setuid(ORDINARY_USER)
            action()
            code = 0
        except BaseException as error:
            os.write(2, f"{error!r}\n".encode())
        finally:
            os._exit(code)
    return os.waitpid(child, 0)[1] == 0


class TestDenied:
    @pytest.fixture
    def folder(self) -> Iterator[Path]:
        with tempfile.TemporaryDirectory() as reachable:  # pytest's own folders are private
            os.chmod(reachable, 0o755)
            store = LocalDirectory(Path(reachable) / "store")
            store.create(KEY, [b"x"])
            for path in [store.root, *store.root.rglob("*")]:
                path.chmod(0o755)
            yield store.root
            # Opened again from the top, or an ordinary user could not remove them.
            for path in [store.root, *store.root.rglob("*")]:
                path.chmod(0o755)

    def test_create(self, folder: Path) -> None:
        def action() -> None:
            with pytest.raises(Denied, match="owner and mode"):
                LocalDirectory(folder).create("datasets/d/chunks/two", [b"x"])

        for path in [folder, *(path for path in folder.rglob("*") if path.is_dir())]:
            path.chmod(0o555)
        assert as_ordinary_user(action)
        assert keys(LocalDirectory(folder)) == [KEY]

    def test_an_unreadable_object(self, folder: Path) -> None:
        def action() -> None:
            with pytest.raises(Denied):
                LocalDirectory(folder).get(KEY)

        (folder / files_below(folder)[0]).chmod(0)
        assert as_ordinary_user(action)

    @pytest.mark.parametrize("closed", [".", "datasets", "datasets/d/chunks"])
    def test_an_unreadable_folder_is_no_empty_one(self, folder: Path, closed: str) -> None:
        """A commit log that looked shorter than it is would have its generations taken twice, or
        its files forgotten."""

        def action() -> None:
            with pytest.raises(Denied):
                list(LocalDirectory(folder).list("datasets/d/"))
            with pytest.raises(Denied):
                LocalDirectory(folder).get(KEY)

        (folder / closed).chmod(0)
        assert as_ordinary_user(action)

    def test_what_a_reader_may_do(self, folder: Path) -> None:
        def action() -> None:
            store = LocalDirectory(folder)
            assert store.get(KEY) == b"x"
            assert keys(store) == [KEY]
            with pytest.raises(NotFound):
                store.get("datasets/d/chunks/two")

        assert as_ordinary_user(action)
