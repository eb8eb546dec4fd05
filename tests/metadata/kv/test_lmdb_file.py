from __future__ import annotations

import shutil
import stat
import subprocess
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import lmdb
import pytest

from metadata.errors import IndexDamaged, IndexUnavailable
from metadata.kv.damaged_file import set_aside
from metadata.kv.key_value_store import MapFields, MapUpdate
from metadata.kv.lmdb_file import LmdbFileStore
from tests.contracts.key_value_store_contract import (
    OpenStore,
    SharedKeyValueStoreContract,
    content,
    get_one,
    new_key,
    put_one,
    running,
    value,
)


class TestLmdbFileStore(SharedKeyValueStoreContract):
    @pytest.fixture
    def open_store(self, tmp_path: Path) -> OpenStore:
        return lambda: LmdbFileStore(tmp_path / "index")


class TestLmdbFileStoreThatGrows(SharedKeyValueStoreContract):
    """The smallest map, so that every test fills it and processes find it grown by another."""

    @pytest.fixture
    def open_store(self, tmp_path: Path) -> OpenStore:
        return lambda: LmdbFileStore(tmp_path / "index", map_bytes=32 << 10)


def test_processes_that_grow_the_map_in_turn(tmp_path: Path) -> None:
    key = new_key()
    store = LmdbFileStore(tmp_path, map_bytes=32 << 10)

    def fill(part: int) -> None:
        for turn in range(40):  # opened while the others make it larger, too
            own = LmdbFileStore(tmp_path, map_bytes=32 << 10)
            names = [b"%d %d %d" % (part, turn, i) for i in range(250)]
            own.put([[MapUpdate(key, names, [value(1, 0, bytes(64))] * 250)]])
            own.close()

    with running([lambda: fill(0), lambda: fill(1), lambda: fill(2)]):
        for _ in range(200):
            store.get_many([MapFields(key, [b"0 0 0"])])
            put_one(store, key, b"mine", value(1))
    assert len(content(store, key)) == 30_001
    store.close()


def test_a_map_that_another_process_makes_larger_while_it_is_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = lmdb.open
    attempts = 0

    def beside_one_that_grows(*arguments: Any, **options: Any) -> Any:
        nonlocal attempts
        attempts += 1
        if attempts <= 2:
            raise lmdb.MapResizedError
        return opened(*arguments, **options)

    monkeypatch.setattr(lmdb, "open", beside_one_that_grows)
    store = LmdbFileStore(tmp_path)
    key = new_key()
    put_one(store, key, b"name", value(1))
    assert len(content(store, key)) == 1
    store.close()


def test_threads_that_fill_the_map_together(tmp_path: Path) -> None:
    store = LmdbFileStore(tmp_path, map_bytes=32 << 10)
    keys = [new_key() for _ in range(4)]

    def fill(key: bytes) -> None:
        for turn in range(20):
            names = [b"%d %d" % (turn, i) for i in range(200)]
            store.put([[MapUpdate(key, names, [value(1, 0, bytes(64))] * 200)]])

    threads = [threading.Thread(target=fill, args=(key,)) for key in keys]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [len(content(store, key)) for key in keys] == [4_000] * 4
    store.close()


def test_stores_of_one_folder_share_it_until_the_last_is_closed(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "index")
    first = LmdbFileStore(tmp_path / "index")
    second = LmdbFileStore(str(tmp_path / "link"))
    put_one(first, b"{k}f", b"a", value(1))
    first.close()
    first.close()
    assert get_one(second, b"{k}f", b"a") == value(1)
    with pytest.raises(IndexUnavailable, match="closed"):
        get_one(first, b"{k}f", b"a")
    second.close()


def test_the_folder_is_private(tmp_path: Path) -> None:
    LmdbFileStore(tmp_path / "data" / "index").close()
    assert stat.S_IMODE((tmp_path / "data" / "index").stat().st_mode) == 0o700


def test_a_file_in_the_way(tmp_path: Path) -> None:
    (tmp_path / "index").write_text("a list of books")
    with pytest.raises(IndexUnavailable, match="not a folder"):
        LmdbFileStore(tmp_path / "index")


def test_a_foreign_file_is_refused_and_kept(tmp_path: Path) -> None:
    (tmp_path / "data.mdb").write_bytes(b"no database" * 4096)
    for _ in range(2):  # nothing stays open
        with pytest.raises(IndexDamaged, match="not a sound LMDB database") as damaged:
            LmdbFileStore(tmp_path)
    assert (tmp_path / "data.mdb").read_bytes().startswith(b"no database")
    assert damaged.value.folder == tmp_path
    kept = set_aside(tmp_path, datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=UTC))
    assert kept == tmp_path / "data.mdb.damaged-20260102T030405.000006Z"
    assert kept.read_bytes().startswith(b"no database")
    store = LmdbFileStore(tmp_path)
    put_one(store, b"{k}f", b"a", value(1))
    store.close()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "none", str(folder)]
    if not shutil.which("mount") or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("mounting a small disk takes root")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def test_a_full_disk(small_disk: Path) -> None:
    key = new_key()
    store = LmdbFileStore(small_disk / "index")
    put_one(store, key, b"small", value(1))
    names = [b"%d" % i for i in range(20_000)]
    with pytest.raises(IndexUnavailable, match="disk is full"):
        store.put([[MapUpdate(key, names, [value(1, 0, bytes(64))] * 20_000)]])
    assert content(store, key) == {b"small": value(1)}
    put_one(store, key, b"still", value(1))
    store.close()
