"""Two equal `dlcmd put`s at once, and one that follows a killed one: nothing is stored twice."""

from __future__ import annotations

import json
import os
import random
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import xxhash

from chunkstore.chunk_listing import chunk_sizes
from chunkstore.put_leases import PutState, read_put_leases
from dieselfs.assembly import open_store
from dieselfs.dataset.dataset import existing_dataset
from metadata.records import ChunkRecord
from tests.eventually import PATIENCE_S, eventually
from tests.faults.case import Measured, fault_case
from tests.faults.forked_dlcmd import Running, start_dlcmd
from tests.faults.kept_dataset import Places, files_of, index_differences
from tests.faults.killed_calls import PAUSED, KillPoint
from tests.faults.repeated_put import folder_in_memory
from tests.forked_programs import run_forked

FILES = {b"%c/%d" % (97 + i % 4, i): b"%d " % i * 150 for i in range(200)}


class Puts:
    """`dlcmd put` of the same source, as often as wanted."""

    def __init__(self, folder: Path, index: str) -> None:
        self.folder = folder
        self.places = Places(f"file://{folder}/store", index)
        self.source = folder / "source"
        self.started: list[Running] = []
        (folder / "store").mkdir()
        for path, data in FILES.items():
            file = self.source / os.fsdecode(path)
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(data)

    def command(self, *more: str) -> list[str]:
        flags = [*self.places.flags, "-j", "1", "--chunk-size", "4KiB", "--no-progress"]
        return ["put", *flags, *more, f"{self.source}/", self.places.name]

    def start(self, *more: str, point: KillPoint | None = None) -> Running:
        self.started.append(start_dlcmd(self.folder, self.command(*more), point, 12_000))
        return self.started[-1]

    def ended(self, *more: str) -> dict[str, object]:
        """What a put that succeeds reports."""
        done = run_forked(
            [sys.executable, "-m", "dieselfs", "--json", *self.command(*more)],
            timeout=PATIENCE_S,
            env={**os.environ, "XDG_DATA_HOME": f"{self.folder}/data"},
        )
        done.check_returncode()
        return dict(json.loads(done.stdout))

    def chunks(self) -> int:
        return len(chunk_sizes(open_store(self.places.store), self.places.name))

    def states(self) -> list[PutState]:
        store = open_store(self.places.store)
        ref = existing_dataset(store, self.places.name)
        return [lease.state for lease in read_put_leases(store, ref).values.values()]

    def check_whole(self) -> dict[bytes, ChunkRecord]:
        """Everything is there, as recovery would have it; return the records of the chunks."""
        with self.places.opened() as dataset:
            assert files_of(dataset) == FILES
            assert index_differences(dataset) == []
            return dataset.namespace.chunks()


@pytest.fixture(params=["lmdb", "redis"])
def puts(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Puts]:
    with folder_in_memory() as folder:
        monkeypatch.setenv("XDG_DATA_HOME", f"{folder}/data")
        redis = request.param == "redis"
        index = request.getfixturevalue("redis_url") if redis else f"lmdb://{folder}/index"
        puts = Puts(folder, index)
        yield puts
        for running in puts.started:
            running.release()


@fault_case(
    "two equal `dlcmd put`s run at once",
    promise="the second one says so and waits; the store holds everything once",
    bound_s=30,
    check="dieselfs.packing.put_turn:overlap=false",
)
def test_an_equal_put_waits(puts: Puts, measured: Measured) -> None:
    first = puts.start(point=KillPoint(True, 1, PAUSED, "create"))
    first.wait_for_pause()
    refused = puts.start("--no-wait").end()
    assert (refused.code, "is under way" in refused.errors) == (8, True)
    with measured.felt():
        second = puts.start()
        eventually(lambda: sorted(puts.states()) == ["running", "waiting"], "the second waits")
        first.go_on()
        assert first.end().code == 0
        ended = second.end()
    assert (ended.code, "waiting for its end" in ended.errors) == (0, True)
    assert "put 0 files" in ended.errors
    assert "200 unchanged" in ended.errors
    assert len(puts.check_whole()) == puts.chunks()
    assert puts.states() == []


def test_of_two_equal_puts_that_go_on_one_keeps_its_chunks(puts: Puts) -> None:
    first = puts.start(point=KillPoint(True, 1, PAUSED, "create"))
    first.wait_for_pause()
    second = puts.start("--anyway").end()
    assert (second.code, "stored twice" in second.errors) == (0, True)
    first.go_on()
    ended = first.end()
    assert (ended.code, "put twice and retired" in ended.errors) == (0, True), ended
    records = puts.check_whole()
    assert 2 * len(records) == puts.chunks()  # the others wait for gc
    assert not any(record.deleted_count for record in records.values())


@fault_case(
    "`dlcmd put` is SIGKILLed with chunks that no commit names, and the same command runs again",
    promise="the stored chunks are committed as they are, and nothing is stored twice",
    bound_s=30,
    check="chunkstore.put_leases:PutLease.drew=false",
)
@pytest.mark.parametrize("call", [1, 2])
def test_what_a_killed_put_stored_is_used(puts: Puts, call: int, measured: Measured) -> None:
    """It is killed at the birth of a generation; its packing processes have stored their chunks."""
    puts.ended("--exclude", "*")  # so that the dataset exists, and nothing is in it
    first = puts.start(point=KillPoint(False, 3 + call, "before", "create"))
    assert first.end().was_killed
    stored = puts.chunks()
    with puts.places.opened() as dataset:
        assert stored > len(dataset.namespace.chunks())
    with measured.felt():
        ended = puts.ended()
    assert ended["reused"]
    records = puts.check_whole()
    assert len(records) == puts.chunks()
    assert stored <= puts.chunks()
    assert puts.states() == []


def test_links_that_a_killed_put_stored_are_used(puts: Puts) -> None:
    links = {f"a/link{number}": f"../b/{number}" for number in range(8)}
    for path, target in links.items():
        (puts.source / path).symlink_to(target)
    puts.ended("--links", "--exclude", "*")
    assert puts.start("--links", point=KillPoint(False, 5, "before", "create")).end().was_killed
    stored = puts.chunks()
    changed = puts.source / "a/link3"
    status = changed.lstat()
    changed.unlink()
    changed.symlink_to("../b/9")  # as long as before
    os.utime(changed, ns=(status.st_mtime_ns, status.st_mtime_ns), follow_symlinks=False)
    assert puts.ended("--links")["reused"]
    with puts.places.opened() as dataset:
        assert set(dataset.namespace.chunks())
        entry = dataset.namespace.stat(b"a/link3").row
        assert int(entry["hash"]) == xxhash.xxh3_64_intdigest(b"../b/9")
        total = len(FILES) + len(links)
        assert dataset.namespace.state().files == total
    assert puts.chunks() <= stored + 12  # those of the changed link are stored again


def test_chunks_whose_files_have_changed_are_not_used(puts: Puts) -> None:
    puts.ended("--exclude", "*")
    assert puts.start(point=KillPoint(False, 4, "before", "create")).end().was_killed
    stored = puts.chunks()
    changed = random.Random(1).choice(sorted(FILES))
    removed = next(path for path in sorted(FILES) if path != changed)
    (puts.source / os.fsdecode(changed)).write_bytes(b"other")
    (puts.source / os.fsdecode(removed)).unlink()
    ended = puts.ended()
    assert 0 < int(str(ended["reused"])) < len(FILES) - 2
    with puts.places.opened() as dataset:
        found = files_of(dataset)
    assert found == {**{p: d for p, d in FILES.items() if p != removed}, changed: b"other"}
    assert puts.chunks() > stored
