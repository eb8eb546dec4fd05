"""The check of an LMDB file: what LMDB wrote is sound, and damage of its pages is found."""

from __future__ import annotations

import os
import random
import struct
from contextlib import closing
from pathlib import Path

import lmdb
import pytest

from metadata.errors import IndexDamaged, RecordCorrupt
from metadata.kv.key_value_store import MapUpdate
from metadata.kv.lmdb_file import LmdbFileStore
from metadata.kv.lmdb_pages import check_pages, check_part
from metadata.records import is_sealed, sealed

PAGE = 4096
_META = struct.Struct("<IIQQ" + 2 * "IHHQQQQQ" + "QQ")


def write_at_random(folder: Path, rng: random.Random, transactions: int = 12) -> None:
    """Records of all sizes, put and deleted, so that there are free pages and large values."""
    environment = lmdb.open(str(folder), map_size=1 << 28, sync=False)
    kept: list[bytes] = []
    for _ in range(transactions):
        with environment.begin(write=True) as transaction:
            for _ in range(200):
                kept.append(rng.randbytes(rng.randrange(1, 300)))
                transaction.put(kept[-1], rng.randbytes(rng.choice([0, 20, 80, 300, 5000, 20_000])))
            rng.shuffle(kept)
            for key in kept[150:]:
                transaction.delete(key)
            del kept[150:]
        check_pages(folder)
    environment.close()


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    folder = tmp_path_factory.mktemp("whole")
    write_at_random(folder, random.Random(1))
    return (folder / "data.mdb").read_bytes()


@pytest.fixture
def folder(tmp_path: Path, whole: bytes) -> Path:
    (tmp_path / "data.mdb").write_bytes(whole)
    return tmp_path


@pytest.mark.parametrize("seed", range(3))
def test_what_lmdb_writes_is_sound(tmp_path: Path, seed: int) -> None:
    write_at_random(tmp_path, random.Random(seed))


def test_a_missing_and_an_empty_file_are_sound(tmp_path: Path) -> None:
    check_pages(tmp_path)
    (tmp_path / "data.mdb").touch()
    check_pages(tmp_path)


def newest_meta(data: bytes) -> tuple[int, ...]:
    metas = [_META.unpack_from(data, page * PAGE + 16) for page in (0, 1)]
    return max(metas, key=lambda meta: meta[-1])


MAIN_ROOT, FREE_ROOT = 19, 11


@pytest.mark.parametrize(
    ("tree", "offset", "value", "reason"),
    [
        (MAIN_ROOT, 0, b"\xff", "another one"),
        (MAIN_ROOT, 10, b"\x02", "another one"),
        (MAIN_ROOT, 12, b"\x10\x00", "impossible bounds"),
        (MAIN_ROOT, 12, b"\x12\x00", "overlap, or lacks some"),
        (MAIN_ROOT, 14, b"\xff\xff", "impossible bounds"),
        (MAIN_ROOT, 16, b"\xf0\xff", "outside itself"),
        (FREE_ROOT, 10, b"\x01", "another one"),
    ],
)
def test_a_damaged_root_is_found(
    folder: Path, whole: bytes, tree: int, offset: int, value: bytes, reason: str
) -> None:
    at = newest_meta(whole)[tree] * PAGE + offset
    (folder / "data.mdb").write_bytes(whole[:at] + value + whole[at + len(value) :])
    with pytest.raises(IndexDamaged, match=reason):
        check_pages(folder)


def test_a_page_in_the_place_of_another_is_found(folder: Path, whole: bytes) -> None:
    root = newest_meta(whole)[MAIN_ROOT]
    other = bytearray(whole[(root - 1) * PAGE : root * PAGE])
    other[:8] = root.to_bytes(8, "little")
    (folder / "data.mdb").write_bytes(whole[: root * PAGE] + other + whole[(root + 1) * PAGE :])
    with pytest.raises(IndexDamaged):
        check_pages(folder)


def test_a_file_that_is_cut_off_is_found(folder: Path) -> None:
    os.truncate(folder / "data.mdb", 3 * PAGE)
    with pytest.raises(IndexDamaged, match="cut off"):
        check_pages(folder)


def test_what_is_not_found_ends_nobody(folder: Path, whole: bytes) -> None:
    """LMDB reads all of a file in which no damage was found: the child would end by a signal."""
    rng = random.Random(2)
    found = 0
    for _ in range(60):
        at = PAGE * rng.randrange(len(whole) // PAGE) + rng.randrange(60)  # where LMDB looks
        damaged = bytearray(whole)
        damaged[at] ^= 1 << rng.randrange(8)
        (folder / "data.mdb").write_bytes(damaged)
        try:
            check_pages(folder)
        except IndexDamaged:
            found += 1
            continue
        assert ends_well(folder), at
    assert found > 2


def ends_well(folder: Path) -> bool:
    """Whether a process that reads everything and writes something ends by itself."""
    child = os.fork()
    if not child:
        with lmdb.open(str(folder), map_size=1 << 28, sync=False) as environment:
            with environment.begin() as transaction:
                sum(len(value) for _, value in transaction.cursor())
            with environment.begin(write=True) as transaction:
                for number in range(50):
                    transaction.put(b"new%d" % number, b"x" * 3000)
        os._exit(0)
    return os.waitpid(child, 0)[1] == 0


def sealed_maps(folder: Path) -> dict[bytes, dict[bytes, bytes]]:
    """Forty maps in an index of their own; the values have checksums of their places."""
    maps = {
        b"{%022d}f" % number: {
            field: sealed(b"{%022d}f" % number, field, bytes(64))
            for field in (b"name-%04d" % at for at in range(number * 3))
        }
        for number in range(40)
    }
    store = LmdbFileStore(folder)
    for key, content in maps.items():
        store.put([[MapUpdate(key, list(content), list(content.values()))]])
    store.close()
    return maps


def listed_map(folder: Path, key: bytes) -> dict[bytes, bytes]:
    with closing(LmdbFileStore(folder)) as store:
        return dict(pair for batch in store.scan(key) for pair in batch)


def test_a_part_that_is_found_sound_is_listed_right(tmp_path: Path) -> None:
    """Whatever bit of the file is flipped: all of a map is there, or its check fails."""
    maps = sealed_maps(tmp_path / "whole")
    whole = (tmp_path / "whole/data.mdb").read_bytes()
    folder, rng = tmp_path / "damaged", random.Random(3)
    folder.mkdir()
    found = 0
    for _ in range(250):
        key = rng.choice(list(maps))
        place = whole.rfind(key) if rng.random() < 0.7 else rng.randrange(len(whole))
        at = min(len(whole) - 1, max(0, place - 30 + rng.randrange(100)))
        damaged = bytearray(whole)
        damaged[at] ^= 1 << rng.randrange(8)
        (folder / "data.mdb").write_bytes(damaged)
        try:
            check_part(folder, key, is_sealed)
            listed = listed_map(folder, key)  # a scan looks a little beyond its map
        except (IndexDamaged, RecordCorrupt):
            found += 1
        else:
            assert listed == maps[key], at
    assert found > 20


def test_a_record_that_is_damaged_is_told_from_a_page(tmp_path: Path) -> None:
    maps = sealed_maps(tmp_path)
    key = list(maps)[20]
    data = bytearray((tmp_path / "data.mdb").read_bytes())
    data[data.rfind(key) + 60] ^= 1
    (tmp_path / "data.mdb").write_bytes(data)
    with pytest.raises(RecordCorrupt, match="`dlcmd recover DATASET` repairs it"):
        check_part(tmp_path, key, is_sealed)
    check_pages(tmp_path)
