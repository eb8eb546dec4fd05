"""A store, or a cache in front of it, that answers with another chunk's bytes: readers of sound
chunks are not kept waiting, and those of the others get an error after two attempts."""

from __future__ import annotations

import errno
import os
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from chunkstore.errors import Corrupt
from chunkstore.object_keys import chunk_key
from dieselfs.assembly import open_store
from dieselfs.client import Client
from metadata.kv.lmdb_file import LmdbFileStore
from metadata.snapshot import Snapshot
from tests.eventually import eventually, scaled_by_load
from tests.faults.case import Measured, fault_case
from tests.faults.misbehaving_s3 import no_chunk, page_for, swapped
from tests.faults.reading import content
from tests.faults.served import NAME, CloudPlace, Served, errno_of, paths_in_chunk
from tests.services.faulty_http import Fault, FaultyProxy

FILES = {f"f{number:03}": content(f"f{number:03}", 8000) for number in range(8 * 32 - 5)}
"""In 32 chunks, of which the last one is shorter than the others."""
SWAPPED = 4
"""One chunk in this many comes as another one."""
READERS = 4
"""Paths of the sound chunks, and as many of the others."""
RIGHT_AGAIN_S = 10.0
"""The bound after the store is right again: what is known for 1 s, and a machine that stalls."""
GETS_OF_A_WRONG_CHUNK = 10
"""Its 8 files would ask for it 34 times, if nothing were remembered."""
GETS_OF_A_SECOND = 2
"""More requests for each second in which a wrong chunk is read: its damage is known for 1 s."""
BOUND_S = 20.0
REMEMBERED = "chunkstore.chunk_damage:KnownDamage.check=false"


@dataclass(slots=True)
class Bench:
    place: CloudPlace
    proxy: FaultyProxy
    snapshot: Snapshot
    folder: Path
    keys: list[str] = field(init=False)

    def __post_init__(self) -> None:
        chunks = range(self.snapshot.chunk_count)
        self.keys = [chunk_key(NAME, self.snapshot.chunk(number).id) for number in chunks]

    @property
    def others(self) -> dict[str, str]:
        """Every fourth chunk comes as its neighbour or, in turn, as the last and shorter one."""
        wrong = self.keys[1::SWAPPED]
        short = self.keys[-1]
        return {
            key: self.keys[self.keys.index(key) + 1] if turn % 2 else short
            for turn, key in enumerate(wrong)
        }

    def paths(self, *, wrong: bool) -> list[str]:
        chunks = range(self.snapshot.chunk_count)
        chosen = [number for number in chunks if (self.keys[number] in self.others) == wrong]
        return [path for number in chosen for path in paths_in_chunk(self.snapshot, number)]

    def gets(self) -> int:
        """Requests for chunks that come as others."""
        return sum(
            asked.method == "GET" and asked.path.partition("?")[0].endswith(tuple(self.others))
            for asked in self.proxy.asked
        )


@pytest.fixture
def bench(proxied_s3_url: str, s3_proxy: FaultyProxy, tmp_path: Path) -> Iterator[Bench]:
    place = CloudPlace(tmp_path / "place", proxied_s3_url)
    with place.make(FILES, target_bytes=64_000) as snapshot:
        yield Bench(place, s3_proxy, snapshot, tmp_path)


@dataclass(slots=True)
class Reading:
    """The results of readers of the sound chunks and of the others, beside each other."""

    found: dict[str, bytes | OSError] = field(default_factory=dict)
    took_s: dict[str, float] = field(default_factory=dict)
    sound_s: float = 0.0
    """Until the last reader of sound chunks was ready."""
    seconds: float = 0.0
    """Until all were ready."""

    def most_gets(self) -> int:
        """Return the most requests for each wrong chunk."""
        return GETS_OF_A_WRONG_CHUNK + GETS_OF_A_SECOND * int(self.seconds)

    def longest_s(self, paths: Sequence[str]) -> float:
        return max(self.took_s[path] for path in paths)


def read_all(mount: Path, sound: Sequence[str], wrong: Sequence[str]) -> Reading:
    reading = Reading()
    began = time.monotonic()

    def read(paths: Sequence[str], is_sound: bool) -> None:
        for path in paths:
            started = time.monotonic()
            try:
                reading.found[path] = (mount / path).read_bytes()
            except OSError as error:
                reading.found[path] = error
            reading.took_s[path] = time.monotonic() - started
        if is_sound:
            reading.sound_s = max(reading.sound_s, time.monotonic() - began)

    threads = [
        threading.Thread(target=read, args=(paths[number::READERS], paths is sound))
        for paths in (sound, wrong)
        for number in range(READERS)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    reading.seconds = time.monotonic() - began
    return reading


def mounted_at(bench: Bench, name: str, *options: str) -> AbstractContextManager[Served]:
    task = ("--task", f"{name}-{os.getpid()}", "--prefill", "0")
    return bench.place.mounted(bench.folder / name, *task, *options)


def check_store_is_well(mount: Served) -> None:
    """Damage is no outage: nothing is tried again for long, and no limit sinks."""
    store = mount.statistics()["store"]
    assert store["retry"]["given_up"] == store["limit"]["decreases"] == 0
    assert "the store does not answer" not in mount.log


@pytest.mark.parametrize("plan", [(), ("--shuffle", "seed=1,group=4")], ids=["no plan", "plan"])
@fault_case(
    "a store that answers with another chunk's bytes for one chunk in four, under readers of all chunks",
    promise="EIO for the files of these chunks after two attempts, remembered for 1 s; readers of the others do not wait; served when the store is right again",
    bound_s=BOUND_S,
    check=REMEMBERED,
)
def test_swapped(bench: Bench, measured: Measured, plan: tuple[str, ...]) -> None:
    sound, wrong = bench.paths(wrong=False), bench.paths(wrong=True)
    with mounted_at(bench, "undisturbed", *plan) as mount:
        undisturbed = read_all(mount.path, sound, wrong)
        assert undisturbed.found == FILES
    bench.proxy.fails(swapped(bench.others))  # before the mount: a plan fetches at once
    with mounted_at(bench, "disturbed", *plan) as mount:
        with measured.felt():
            reading = read_all(mount.path, sound, wrong)
        gets = bench.gets()
        assert {path: reading.found[path] for path in sound} == {p: FILES[p] for p in sound}
        for path in wrong:
            found = reading.found[path]
            assert isinstance(found, OSError), path
            assert found.errno == errno.EIO
        check_store_is_well(mount)
        assert gets <= reading.most_gets() * len(bench.others)
        bench.proxy.fails(None)
        with measured.felt():
            wait_until_right(mount, wrong)
        assert all((mount.path / path).read_bytes() == FILES[path] for path in wrong)
    rate = undisturbed.sound_s / reading.sound_s
    measured.note(f"sound chunks at {rate:.2f} of the undisturbed rate")
    measured.note(f"EIO within {reading.longest_s(wrong):.2f} s")
    measured.note(f"{gets} requests for {len(bench.others)} wrong chunks")


def wait_until_right(mount: Served, paths: Collection[str]) -> None:
    for path in paths:
        eventually(
            lambda path=path: errno_of(mount.path / path) is None,
            path,
            scaled_by_load(RIGHT_AGAIN_S),
        )


NO_CHUNK: dict[str, Callable[[Collection[str]], Fault]] = {
    "a page of 200": page_for,
    "nothing": lambda keys: no_chunk(keys, lambda data: b""),
    "garbage": lambda keys: no_chunk(keys, lambda data: content("garbage", len(data))),
    "the head": lambda keys: no_chunk(keys, lambda data: data[:1200]),
    "the half": lambda keys: no_chunk(keys, lambda data: data[: len(data) // 2]),
}


@pytest.mark.parametrize("kind", NO_CHUNK)
@fault_case(
    "a store that answers with no chunk for one chunk in four: with a page, nothing, random bytes, or half of the chunk",
    promise="EIO for the files that are not there after two attempts, remembered while they are not; what half a chunk has is served, and so is the rest when the store is right again",
    bound_s=BOUND_S,
    check=REMEMBERED,
)
def test_no_chunk(bench: Bench, measured: Measured, kind: str) -> None:
    sound, wrong = bench.paths(wrong=False), bench.paths(wrong=True)
    with mounted_at(bench, "mnt") as mount:
        bench.proxy.fails(NO_CHUNK[kind](bench.others))
        with measured.felt():
            reading = read_all(mount.path, sound, wrong)
        gets = bench.gets()
        failed = {path for path in FILES if isinstance(reading.found[path], OSError)}
        assert {reading.found[path].errno for path in failed} == {errno.EIO}
        assert {p: reading.found[p] for p in FILES if p not in failed} == {
            p: FILES[p] for p in FILES if p not in failed
        }
        if kind == "the half":
            assert failed < set(wrong)
        else:
            assert failed == set(wrong)
        check_store_is_well(mount)
        read_one_by_one = len(wrong) - len(failed)
        assert gets - read_one_by_one <= reading.most_gets() * len(bench.others)
        bench.proxy.fails(None)
        with measured.felt():
            wait_until_right(mount, failed)
        assert all((mount.path / path).read_bytes() == FILES[path] for path in wrong)
    measured.note(f"EIO within {reading.longest_s(wrong):.2f} s")
    measured.note(f"{gets} requests for {len(bench.others)} wrong chunks")


def check_all_served(bench: Bench, measured: Measured) -> None:
    with mounted_at(bench, "mnt") as mount, measured.felt():
        reading = read_all(mount.path, bench.paths(wrong=False), bench.paths(wrong=True))
        assert reading.found == FILES
        check_store_is_well(mount)
    measured.note("all served")


@fault_case(
    "a cache in front of the store that has other chunks' bytes for one chunk in four",
    promise="the second attempt goes past the cache (`Cache-Control: no-cache`, another connection): all files are served",
    bound_s=BOUND_S,
    check="chunkstore.stores.cloud:CloudStore.forget=none",
)
def test_confused_cache(bench: Bench, measured: Measured) -> None:
    bench.proxy.fails(swapped(bench.others, obeys=True))
    check_all_served(bench, measured)


@fault_case(
    "a store that answers with another chunk's bytes once for one chunk in four",
    promise="the second attempt brings the right bytes: all files are served",
    bound_s=BOUND_S,
    why="any damage is read a second time",
)
def test_swapped_once(bench: Bench, measured: Measured) -> None:
    bench.proxy.fails(swapped(bench.others, times=1))
    check_all_served(bench, measured)


@fault_case(
    "a store that answers a client's `get_many` with other chunks' bytes for one chunk in four",
    promise="`Corrupt` for these files, the bytes of the others; right when the store is",
    bound_s=BOUND_S,
    why="as under a mount: two attempts, and damage is no outage",
)
def test_get_many(bench: Bench, measured: Measured) -> None:
    sound, wrong = bench.paths(wrong=False), bench.paths(wrong=True)
    index = LmdbFileStore(bench.place.folder / "index")
    store = open_store(bench.place.url)
    try:
        with Client.connect(
            NAME, store=store, index=index, snapshot_folder=bench.folder / "snapshots"
        ) as client:
            bench.proxy.fails(swapped(bench.others))
            raised = measured.call(lambda: client.get_many(wrong))
            assert isinstance(raised, Corrupt)
            assert measured.call(lambda: client.get_many(sound)) == [FILES[p] for p in sound]
            assert isinstance(measured.call(lambda: client.get(wrong[-1])), Corrupt)
            statistics = store.statistics()
            assert statistics.retry.given_up == statistics.limit.decreases == 0
            bench.proxy.fails(None)
            with measured.felt():
                found = eventually(
                    lambda: client.get_many(wrong),
                    "bytes",
                    scaled_by_load(RIGHT_AGAIN_S),
                    ignored=Corrupt,
                )
            assert found == [FILES[path] for path in wrong]
    finally:
        index.close()
    measured.note("Corrupt for these, the others served")
