"""libDIESEL's calls (DIESEL Table 3), one after the other."""

from __future__ import annotations

import io
import os
import pickle
import random
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from chunkstore.errors import InvalidPath, StoreFull
from chunkstore.stores.memory import MemoryObjectStore
from dieselfs.client import Client
from dieselfs.dataset.file_stat import FileStat
from dieselfs.errors import UsageError
from metadata.errors import (
    DatasetNotFound,
    PathConflict,
    PathIsLink,
    PathNotFound,
    SnapshotClosed,
    SnapshotRefused,
    SnapshotStale,
)
from metadata.kv.memory import MemoryStore
from tests.contracts.key_value_store_contract import fork
from tests.eventually import eventually

MIB = 1 << 20


class Places:
    """A store, an index and a folder, and clients of them."""

    def __init__(self, folder: Path) -> None:
        self.store = CountingStore()
        self.index = MemoryStore()
        self.folder = folder

    def client(self, name: str = "pets", create: bool = True, **packing: int) -> Client:
        return Client.connect(
            name,
            store=self.store,
            index=self.index,
            snapshot_folder=self.folder,
            create=create,
            **packing,  # type: ignore[arg-type]
        )


class CountingStore(MemoryObjectStore):
    """Counts reads, and is full when told so."""

    full = False
    reads = 0

    def create(self, key: str, parts: object) -> None:
        if self.full:
            raise StoreFull("no space left")
        super().create(key, parts)  # type: ignore[arg-type]

    def get(self, key: str) -> bytes:
        self.reads += "/chunks/" in key
        return super().get(key)

    def get_range(self, key: str, offset: int, length: int) -> bytes:
        self.reads += "/chunks/" in key
        return super().get_range(key, offset, length)


@pytest.fixture
def places(tmp_path: Path) -> Places:
    return Places(tmp_path / "snapshots")


def test_links_say_where_they_lead(places: Places) -> None:
    with places.client() as client:
        client.put(b"data", "run/5/f", mtime_ns=1)
        client.put_link("run/5", "latest", mtime_ns=2)
        client.put_link("../../latest/f", b"run/5/\xff", mtime_ns=3)
        client.flush()
        for way in ("index", "snapshot", "memory"):
            if way == "snapshot":
                client.load_meta(client.save_meta())
            found = client.stat("latest")
            assert (found.kind, found.size, found.mode, found.mtime_ns) == ("link", 5, 0o120777, 2)
            assert client.readlink("latest") == "run/5"
            assert client.readlink(b"run/5/\xff") == "../../latest/f"
            assert [entry.kind for entry in client.ls()] == ["directory", "link"]
            assert [entry.path for entry in client.ls("latest")] == ["latest"]
            assert [entry.path for entry in client.walk("latest")] == ["latest"]
            assert len(client) == 3
            assert "latest" in client
            assert "latest/f" not in client  # names are looked up, links are not followed
            for read in (client.get, client.open, lambda path: client.get_many([path])):
                with pytest.raises(PathIsLink, match="symbolic link"):
                    read("latest")
            for path in ("run", "run/5/f"):
                with pytest.raises(PathConflict):
                    client.readlink(path)
            with pytest.raises(PathNotFound):
                client.readlink("nowhere")
        with pytest.raises(PathIsLink):
            client.inode("latest")
        assert client.get("run/5/f") == b"data"
        client.delete("latest")
        client.flush()
        client.load_meta(client.save_meta())
        assert "latest" not in client


@pytest.mark.parametrize(
    ("target", "path"), [("/x", "a"), ("..", "a"), ("../../b", "d/a"), ("x/..", "a"), ("", "a")]
)
def test_links_that_may_lead_out_are_refused(places: Places, target: str, path: str) -> None:
    with places.client() as client:
        with pytest.raises(UsageError, match="target"):
            client.put_link(target, path)
        assert client.flush() == 1
        client.put(b"", "d/a")
        with pytest.raises(PathConflict):
            client.put_link("a", "d/a/b")


def names(found: list[FileStat]) -> list[str]:
    return [entry.path + "/" * (entry.kind == "directory") for entry in found]


def test_table_3(places: Places) -> None:
    with places.client() as client:
        client.put(b"one", "cat/1.jpg", mode=0o600, mtime_ns=5)
        client.put(b"", "cat/empty")
        assert client.flush() == 2
        assert client.get("cat/1.jpg") == b"one"
        assert client.get(b"/cat/empty/") == b""
        found = client.stat("cat/1.jpg")
        assert (found.path, found.kind, found.size) == ("cat/1.jpg", "file", 3)
        assert (found.mode, found.mtime_ns, found.generation) == (0o100600, 5, 2)
        assert found.chunk is not None
        assert names(client.ls()) == ["cat/"]
        assert names(client.ls("cat")) == ["cat/1.jpg", "cat/empty"]
        assert names(client.ls("cat/1.jpg")) == ["cat/1.jpg"]
        client.delete("cat/1.jpg")
        client.flush()
        with pytest.raises(PathNotFound):
            client.get("cat/1.jpg")
        path = client.save_meta()
        client.load_meta(path)
        assert client.shuffle() == ["cat/empty"]
        assert client.purge().chunks_retired == 2
        assert client.get("cat/empty") == b""
    client = places.client()
    client.delete_dataset()
    client.close()
    with pytest.raises(DatasetNotFound):
        places.client(create=False)


def test_connecting_to_what_is_not_there(places: Places) -> None:
    with pytest.raises(DatasetNotFound):
        places.client(create=False)
    assert list(places.store.list("")) == []


def test_what_can_be_put(places: Places, tmp_path: Path) -> None:
    local = tmp_path / "local"
    local.write_bytes(b"from disk")
    local.chmod(0o4711)
    os.utime(local, ns=(0, -123_456_789))
    numbers = np.arange(10, dtype=np.int32)
    with places.client() as client:
        client.put(local, "path")
        client.put(local, "path2", mode=0o600, mtime_ns=9)
        with open(local, "rb") as file:
            client.put(file, "file")
        client.put(io.BytesIO(b"stream"), "stream", mtime_ns=1)
        client.put(bytearray(b"array"), "array")
        client.put(memoryview(b"__view__")[2:6], "view")
        client.put(memoryview(numbers), "numbers")
        client.put(memoryview(numbers)[::2], "strided")
        with pytest.raises(UsageError, match="binary"), open(local) as text:
            client.put(text, "text")  # type: ignore[arg-type]
        with pytest.raises(FileNotFoundError):
            client.put(tmp_path / "none", "none")
    client = places.client()
    contents = {found.path: client.get(found.path) for found in client.ls()}
    assert contents == {
        "path": b"from disk", "path2": b"from disk", "file": b"from disk", "stream": b"stream",
        "array": b"array", "view": b"view", "numbers": numbers.tobytes(),
        "strided": numbers[::2].tobytes(),
    }  # fmt: skip
    found = client.stat("path")
    assert (found.mode, found.mtime_ns) == (0o104711, -123_456_789)
    assert (client.stat("path2").mode, client.stat("path2").mtime_ns) == (0o100600, 9)
    assert client.stat("file").mode == 0o100644


@pytest.mark.parametrize("path", ["a", b"a", "ö/ü", b"caf\xe9/\n\x1b[31m", "\udcff/x", "n" * 255])
def test_any_name(places: Places, path: str | bytes) -> None:
    with places.client() as client:
        client.put(b"x", path)
        client.flush()
        text = path if isinstance(path, str) else os.fsdecode(path)
        assert client.get(os.fsencode(path)) == client.get(text) == b"x"
        assert [found.path for found in client.walk() if found.kind == "file"] == [text]
        client.load_meta(client.save_meta())
        assert client.get(path) == b"x"
        assert client.shuffle() == [text]
        assert client.stat(path).path == text


@pytest.mark.parametrize("path", ["", "/", "a//b", ".", "a/../b", "a/./b", "a\0b", "n" * 256])
def test_an_illegal_name_changes_nothing(places: Places, path: str) -> None:
    with places.client() as client:
        client.put(b"x", "fine")
        with pytest.raises(InvalidPath):
            client.put(b"x", path)
        client.put(b"y", "fine too")
    assert names(places.client().ls()) == ["fine", "fine too"]


def test_files_and_directories_of_one_name(places: Places) -> None:
    with places.client() as client:
        client.put(b"x", "a/b/c")
        for path in ("a", "a/b", "a/b/c/d"):
            with pytest.raises(PathConflict):
                client.put(b"x", path)
        client.flush()
        for path in ("a", "a/b", "a/b/c/d"):
            with pytest.raises(PathConflict):
                client.put(b"x", path)
        with pytest.raises(PathConflict):
            client.get("a")
        with pytest.raises(PathConflict):
            client.get("")
        with pytest.raises(PathConflict, match="not empty"):
            client.delete("a")
        client.delete_tree("a")
        client.put(b"now a file", "a")
    assert places.client().get("a") == b"now a file"
    assert places.client().dataset.namespace.state().directories == 0


def test_names_that_conflict_between_writers_can_still_be_listed_and_saved(places: Places) -> None:
    with places.client() as one, places.client() as other:
        one.put(b"file", "a")
        other.put(b"below", "a/b")
    client = places.client()
    assert names(list(client.walk())) == ["a/", "a/b"]
    client.load_meta(client.save_meta())
    assert names(list(client.walk())) == ["a/", "a/b"]


@pytest.mark.parametrize(("deleted", "left"), [("a", []), ("a/x", ["a/", "a/x"])])
def test_a_hidden_file_goes_with_the_directory_that_holds_it(
    places: Places, deleted: str, left: list[str]
) -> None:
    """Else it stays in the totals, and no listing and no snapshot can be complete."""
    with places.client() as one, places.client() as other:
        one.put(b"file", "a/x")
        other.put(b"below", "a/x/y")
    with places.client() as client:
        assert client.delete_tree(deleted) == 1
        client.flush()
        assert names(list(client.walk())) == left
        assert client.dataset.namespace.state().files == len(left) // 2
        client.load_meta(client.save_meta())


def test_an_exception_leaves_what_was_not_flushed_invisible(places: Places) -> None:
    before = set(threading.enumerate())
    with pytest.raises(ZeroDivisionError), places.client() as client:  # noqa: PT012
        client.put(b"x", "flushed")
        client.flush()
        client.put(b"y", "not flushed")
        raise ZeroDivisionError
    assert names(places.client().ls()) == ["flushed"]
    assert set(threading.enumerate()) <= before


def test_a_full_store_is_told_and_what_was_there_stays(places: Places) -> None:
    with places.client() as client:
        client.put(b"x", "before")
    client = places.client()
    client.put(b"y", "after")
    places.store.full = True
    with pytest.raises(StoreFull):
        client.flush()
    with pytest.raises(StoreFull):
        client.close()
    places.store.full = False
    assert names(places.client().ls()) == ["before"]
    client = places.client()
    client.put(b"y", "after")
    client.close()
    assert names(places.client().ls()) == ["after", "before"]


def test_a_client_removes_no_other_dataset_of_the_name(places: Places) -> None:
    client = places.client()
    places.client().delete_dataset()
    with places.client() as other:
        other.put(b"y", "new")
    with pytest.raises(DatasetNotFound, match="another one has its name"):
        client.delete_dataset()
    assert names(places.client().ls()) == ["new"]


def test_overwriting_and_deleting(places: Places) -> None:
    with places.client() as client:
        client.put(b"1", "a")
        client.put(b"2", "a")
        client.flush()
        assert client.get("a") == b"2"
        client.put(b"3", "a")
        client.flush()
        client.delete("a")
        client.put(b"4", "a")
        client.flush()
        assert client.get("a") == b"4"
        client.put(b"x", "d/e/f")
        assert client.delete_tree("d/e") == 1
        client.delete("d")
        client.flush()
        assert names(client.ls()) == ["a"]
        with pytest.raises(PathNotFound):
            client.delete("d")
        with pytest.raises(PathConflict):
            client.delete("")
        client.put(b"x", "d/e/f")
        assert client.delete_tree("") == 2
    assert list(places.client().walk()) == []
    state = places.client().dataset.namespace.state()
    assert (state.files, state.bytes, state.directories) == (0, 0, 0)


def test_a_tree_deleted_while_another_adds_to_it(places: Places) -> None:
    with places.client() as one:
        for number in range(5):
            one.put(b"x", f"a/b/{number}")
    one, other = places.client(), places.client()
    assert one.delete_tree("a") == 5  # committed only at the flush
    other.put(b"new", "a/b/new")
    other.put(b"again", "a/b/0")
    other.flush()
    one.flush()
    assert names(list(one.walk())) == ["a/", "a/b/", "a/b/0", "a/b/new"]
    assert one.get("a/b/0") == b"again"
    one.close()
    other.close()


@pytest.mark.parametrize("size", [256 * 1024, 256 * 1024 + 1, 4 * MIB, 17 * MIB + 1])
def test_large_files(places: Places, size: int) -> None:
    data = random.Random(size).randbytes(size)
    with places.client() as client:
        client.put(b"beside", "small")
        client.put(data, "large")
    client = places.client()
    assert client.get("large") == data
    client.shuffle()
    assert client.get("large") == data == client.get("large")
    copy = io.BytesIO()
    assert client.read_to("large", copy) == size
    assert copy.getvalue() == data
    client.close()


def test_a_snapshot_answers_as_the_index_does(places: Places) -> None:
    draw = random.Random(1)
    with places.client(target_bytes=4096) as client:
        for number in range(300):
            path = f"{draw.randint(0, 5)}/{draw.choice('xyz')}{draw.randint(0, 9)}/{number}"
            client.put(draw.randbytes(draw.randint(0, 300)), path, mtime_ns=number)
        client.put(b"top", "top")
    client = places.client()
    walked = list(client.walk())
    files = {found.path: client.get(found.path) for found in walked if found.kind == "file"}
    assert len(files) == 301
    client.load_meta(client.save_meta())

    def unversioned(found: list[FileStat]) -> list[tuple[object, ...]]:
        return [
            (f.path, f.kind, f.size, f.mode, f.mtime_ns, f.chunk, f.offset, f.hash) for f in found
        ]

    assert unversioned(list(client.walk())) == unversioned(walked)
    assert {path: client.get(path) for path in files} == files
    assert unversioned(client.ls("1")) == [
        row
        for row in unversioned(walked)
        if str(row[0]).startswith("1/") and str(row[0]).count("/") == 1
    ]
    assert names(list(client.walk("top"))) == ["top"]
    for look in (client.stat, client.get, client.ls):
        with pytest.raises(PathNotFound):
            look("none")
    with pytest.raises(PathConflict):
        client.get("1")
    client.close()


def test_changes_go_into_the_dataset_while_a_snapshot_is_read(places: Places) -> None:
    with places.client() as client:
        client.put(b"x", "a")
        client.load_meta(client.save_meta())
        assert client.shuffle() == ["a"]
        client.put(b"y", "b")
        client.delete("a")
        client.flush()
        assert names(client.ls()) == ["a"]
        assert client.get("a") == b"x"
        client.load_meta(client.save_meta())
        assert names(client.ls()) == ["b"]
        assert client.get("b") == b"y"


@pytest.mark.parametrize("from_snapshot", [False, True])
def test_files_are_opened_found_and_counted(places: Places, from_snapshot: bool) -> None:
    large = os.urandom(600_000)
    with places.client() as client:
        client.put(b"one\ntwo\n", "train/cat/1.jpg")
        client.put(b"", "train/cat/empty.txt")
        client.put(large, "train/dog/a/2.jpg")
        client.flush()
        if from_snapshot:
            client.load_meta(client.save_meta())
        with client.open("train/cat/1.jpg") as file:
            assert file.readlines() == [b"one\n", b"two\n"]
        with client.open("train/dog/a/2.jpg") as file:
            assert file.seek(-1000, os.SEEK_END) == 599_000
            assert file.read() == large[-1000:]
            assert file.seek(100) == 100
            assert file.read(300_000) == large[100:300_100]
            assert file.seek(700_000) == 700_000
            assert file.read() == b""
            with pytest.raises(ValueError, match="negative"):
                file.seek(-1)
        assert io.TextIOWrapper(client.open("train/cat/1.jpg")).read() == "one\ntwo\n"
        assert client.open("train/cat/empty.txt").read() == b""
        with pytest.raises(PathNotFound):
            client.open("nothing")
        with pytest.raises(PathConflict):
            client.open("train")
        assert list(client.glob("train/*/*.jpg")) == ["train/cat/1.jpg"]
        assert sorted(client.glob("/train/**/[12].jpg")) == ["train/cat/1.jpg", "train/dog/a/2.jpg"]
        assert list(client.glob("train/do?")) == ["train/dog"]
        assert list(client.glob("train/cat/1.jpg")) == ["train/cat/1.jpg"]
        assert list(client.glob("nothing/*")) == []
        assert client.exists("train/cat")
        assert b"train/cat/1.jpg" in client
        assert "train/cat/1.jpg/below" not in client
        assert 7 not in client
        assert len(client) == 3
        assert client
        assert repr(client).startswith("<Client pets@" if from_snapshot else "<Client pets>")


def test_an_empty_client_is_true_and_text_is_refused_by_put(places: Places) -> None:
    with places.client() as client:
        assert len(client) == 0
        assert client
        with pytest.raises(
            UsageError, match=r"bytes, an open binary file or a pathlib\.Path, not str"
        ):
            client.put("text", "a")  # type: ignore[arg-type]
        assert not client.exists("a")


def test_snapshots_that_are_refused(places: Places, tmp_path: Path) -> None:
    with places.client("pets") as pets, places.client("cars") as cars:
        pets.put(b"x", "a")
        cars.put(b"y", "b")
        of_pets, of_cars = pets.save_meta(), cars.save_meta()
        with pytest.raises(SnapshotRefused, match="cars"):
            pets.load_meta(of_cars)
        damaged = tmp_path / "damaged.snapshot"
        data = bytearray(of_pets.read_bytes())
        data[20] ^= 1
        damaged.write_bytes(data)
        with pytest.raises(SnapshotRefused):
            pets.load_meta(damaged)
        damaged.write_bytes(of_pets.read_bytes()[:-1])
        with pytest.raises(SnapshotRefused):
            pets.load_meta(damaged)
        pets.put(b"z", "c")
        pets.flush()
        with pytest.raises(SnapshotStale, match="--refresh"):
            pets.load_meta(of_pets)
        assert names(pets.ls()) == ["a", "c"]  # none of them was taken
        pets.load_meta(of_pets, check_fresh=False)
        assert names(pets.ls()) == ["a"]
        pets.load_meta(pets.save_meta())
        assert names(pets.ls()) == ["a", "c"]
    kept = tmp_path / "kept.snapshot"
    kept.write_bytes(of_pets.read_bytes())
    old = places.client("pets")
    old.delete_dataset()
    assert (of_pets.exists(), of_cars.exists()) == (False, True)
    with places.client("pets") as again, pytest.raises(SnapshotRefused):
        again.load_meta(kept)


def test_shuffled_reading_fetches_every_chunk_once(places: Places) -> None:
    contents = {f"{n % 7}/{n}": random.Random(n).randbytes(n) for n in range(400)}
    with places.client(target_bytes=8192, open_chunks=8) as client:
        for path, data in contents.items():
            client.put(data, path)
    client = places.client()
    places.store.reads = 0
    order = client.shuffle(seed=3, group_size=2)
    assert sorted(order) == sorted(contents)
    assert {path: client.get(path) for path in order} == contents
    chunks = client.dataset.namespace.state().chunks
    assert chunks > 5
    assert places.store.reads == chunks

    def fetches() -> int:
        memory = client.statistics().memory
        assert memory is not None
        assert memory.node is not None
        return memory.node.fetches

    # A chunk fetched ahead can be read before it is counted.
    eventually(lambda: fetches() == chunks, "each chunk counted once")
    assert client.shuffle(seed=3, group_size=2) == order != client.shuffle(seed=4, group_size=2)
    ranks = [client.shuffle(rank=rank, world_size=4) for rank in range(4)]
    assert [len(paths) for paths in ranks] == [100] * 4
    assert sorted(path for paths in ranks for path in paths) == sorted(contents)
    client.close()


def test_a_shuffle_while_another_writer_commits(
    places: Places, monkeypatch: pytest.MonkeyPatch
) -> None:
    with places.client() as client:
        client.put(b"x", "a")
    client, other = places.client(), places.client()
    save = client.save_meta

    def save_and_be_late(folder: Path | None = None) -> Path:
        path = save(folder)
        other.put(b"y", "b")
        other.flush()
        return path

    monkeypatch.setattr(client, "save_meta", save_and_be_late)
    assert client.shuffle() == ["a"]
    client.close()
    other.close()


def test_the_root_of_an_empty_dataset(places: Places) -> None:
    with places.client() as client:
        assert client.ls() == list(client.walk()) == []
        assert client.stat("").kind == "directory"
        assert client.shuffle() == []
        assert client.flush() == 1


def test_after_a_fork_reading_goes_on_and_writing_is_refused(places: Places) -> None:
    client = places.client()
    client.put(b"x", "a")
    client.flush()
    client.put(b"pending", "b")

    def child() -> None:
        assert client.get("a") == b"x"
        for change in (
            lambda: client.put(b"y", "c"),
            client.flush,
            lambda: client.delete("a"),
        ):
            try:
                change()
            except UsageError:
                continue
            raise AssertionError("a forked child wrote with its parent's writer")
        client.close()  # neither hangs nor commits what is the parent's

    assert os.waitpid(fork(child), 0)[1] == 0
    client.close()
    assert names(places.client().ls()) == ["a", "b"]


def test_a_client_opened_in_the_child_writes(tmp_path: Path) -> None:
    from chunkstore.stores.local_directory import LocalDirectory
    from metadata.kv.lmdb_file import LmdbFileStore

    store, index = LocalDirectory(tmp_path / "store"), LmdbFileStore(tmp_path / "index")

    def connect() -> Client:
        return Client.connect(
            "pets", store=store, index=index, snapshot_folder=tmp_path, create=True
        )

    parent = connect()
    parent.put(b"p", "parent")

    def child() -> None:
        with connect() as client:
            client.put(b"c", "child")

    assert os.waitpid(fork(child), 0)[1] == 0
    parent.close()
    with connect() as client:
        assert names(client.ls()) == ["child", "parent"]
    index.close()


def test_a_closed_client_can_be_closed_again(places: Places) -> None:
    client = places.client()
    client.put(b"x", "a")
    client.close()
    client.close()
    calls: list[Callable[[], object]] = [
        lambda: client.get("a"),
        lambda: client.get_many([]),
        lambda: client.put(b"y", "b"),
        client.flush,
        client.ls,
        lambda: client.open("a"),
        client.open_memory,
        client.shuffle,
        client.save_meta,
        client.statistics,
        client.sibling,
        client.read_settings,
        client.delete_dataset,
        client.__enter__,
        lambda: client.committed_ns(1),
        lambda: client.glob("*"),
        lambda: client.samples,
    ]
    for call in calls:
        with pytest.raises(UsageError, match="the client of pets is closed"):
            call()
    assert repr(client) == "<Client pets, closed>"
    assert places.client().get("a") == b"x"  # store and index are the caller's


@pytest.mark.parametrize(
    "packing",
    [{"target_bytes": 0}, {"target_bytes": 2 << 30}, {"open_chunks": 3}, {"open_chunks": 0},
     {"keep_together": "folder"}],
)  # fmt: skip
def test_packing_that_is_none_creates_no_dataset(places: Places, packing: dict[str, int]) -> None:
    with pytest.raises(UsageError, match=next(iter(packing))):
        places.client(**packing)
    assert list(places.store.list("")) == []


def test_arguments_of_other_kinds(places: Places, tmp_path: Path) -> None:
    """A number is no snapshot: it would be a descriptor of this process."""
    with places.client() as client:
        client.put(b"x", "a")
        assert client.save_meta(str(tmp_path)).parent == tmp_path
        calls: list[tuple[Callable[[], object], str]] = [
            (lambda: client.get(Path("a")), "is str or bytes, not PosixPath"),  # type: ignore[arg-type]
            (lambda: client.load_meta(2), "2 is neither a file nor a string"),  # type: ignore[arg-type]
            (lambda: client.load_meta("/a.snapshot"), "/a.snapshot is no tag"),
            (lambda: client.get_many("ab"), "takes several files, not 'ab'"),
            (lambda: client.prefetch(chunks=["x"]), "'x' is not the id of a chunk"),
            (lambda: client.open_memory("1GiB"), "'1GiB' is not a size"),  # type: ignore[arg-type]
            (lambda: client.open_memory(-1), "-1 is not a size"),
            (lambda: pickle.dumps(client), "a client cannot be pickled"),
        ]
        for call, message in calls:
            with pytest.raises(UsageError, match=message):
                call()
        assert client.read_files([]) == []


def test_what_a_closed_client_has_given_says_so(places: Places) -> None:
    with places.client() as client:
        client.put(b"x", "a")
        client.load_meta(client.save_meta())
        snapshot, walk = client.snapshot, client.walk()
    assert snapshot is not None
    for use in (lambda: next(walk), lambda: snapshot.content, lambda: snapshot.resolve("a")):
        with pytest.raises(SnapshotClosed, match="is closed: open it again"):
            use()


def test_slashes_at_the_ends_of_a_path_do_not_count(places: Places) -> None:
    with places.client() as client:
        client.put(b"first", "/a")
        client.put(b"second", "a/")
        client.flush()
        assert client.get("a") == client.get("/a/") == b"second"
        assert len(list(client.ls(""))) == 1
