"""Eight processes write one dataset: their own names and shared ones, puts, overwrites and
deletions; one of them is killed."""

from __future__ import annotations

import json
import os
import random
import signal
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest

from chunkstore.chunk_format import KIND_FILE, KIND_TOMBSTONE
from dieselfs.assembly import open_index, open_store
from dieselfs.cli import run_dlcmd
from dieselfs.cli.rendering.exit_codes import ExitCode
from dieselfs.client import Client
from dieselfs.dataset.dataset import Dataset
from dieselfs.recovery import recover
from metadata.errors import PathNotFound
from tests.eventually import eventually
from tests.faults.case import Measured, fault_case
from tests.faults.forked_dlcmd import Running
from tests.faults.kept_dataset import Places, files_of, index_differences
from tests.faults.repeated_put import folder_in_memory
from tests.services.redis_processes import RedisProcess

WRITERS = 8
WITH_DLCMD = (6, 7)
"""Those that are `dlcmd put`, the others hold a `Client`."""
KILLED = 3
ROUNDS = 8
SHARED = [f"shared/{number}" for number in range(6)]


def write(places: Places, number: int, told: Path) -> None:
    """A writer's life: after each flush it tells what it has been promised."""
    draw = random.Random(number)
    index = open_index(places.index)
    client = Client.connect(
        places.name, store=open_store(places.store), index=index, snapshot_folder=told.parent
    )
    with client, open(told, "a") as promises:
        for turn in range(10_000 if number == KILLED else ROUNDS):
            own = {f"w{number}/{turn}-{i}": f"{number} {turn} {i}" * 50 for i in range(3)}
            own[f"w{number}/always"] = f"{number} {turn}" * 50
            shared = {name: f"{number} {turn} {name}" * 20 for name in draw.sample(SHARED, 3)}
            for path, text in {**own, **shared}.items():
                client.put(text.encode(), path)
            if turn % 3 == 2:
                try:
                    client.delete(draw.choice(SHARED))
                except PathNotFound:  # another writer was faster
                    pass
            client.flush()
            print(json.dumps(own), file=promises, flush=True)
    index.close()


def put_with_dlcmd(places: Places, number: int, told: Path) -> int:
    source = told.parent / f"source-{number}"
    for turn in range(ROUNDS // 2):
        own = {f"w{number}/{turn}-{i}": f"{number} {turn} {i}" * 50 for i in range(3)}
        shared = {name: f"{number} {turn} {name}" * 20 for name in SHARED}
        for path, text in {**own, **shared}.items():
            (source / path).parent.mkdir(parents=True, exist_ok=True)
            (source / path).write_text(text)
        if code := run_dlcmd(
            ["put", *places.flags, "-j", "1", "--quiet", f"{source}/", places.name]
        ):
            return code
        with open(told, "a") as promises:
            print(json.dumps(own), file=promises, flush=True)
    return 0


def promised(told: Path) -> dict[bytes, bytes]:
    found: dict[str, str] = {}
    for line in told.read_text().splitlines():
        found |= json.loads(line)
    return {path.encode(): text.encode() for path, text in found.items()}


def current(dataset: Dataset) -> Mapping[bytes, tuple[int, bytes, int]]:
    """By the documented rule, from the store alone: of each name the put of the greatest
    (generation, chunk, position) that no deletion saw, or none."""
    puts: dict[bytes, tuple[int, bytes, int]] = {}
    seen: dict[bytes, int] = {}
    for commit in dataset.log.since(0):
        for ref in commit.added:
            entries = dataset.reader.head(ref.id, ref.head_bytes).entries
            for position, (path, kind) in enumerate(
                zip(entries.paths, entries.kind.tolist(), strict=True)
            ):
                if kind == KIND_FILE:
                    place = (commit.generation, ref.id.value, position)
                    puts[path] = max(puts.get(path, place), place)
                elif kind == KIND_TOMBSTONE and entries.versions is not None:
                    generation = int(entries.versions["generation"][position])
                    seen[path] = max(seen.get(path, 0), generation)
    return {path: place for path, place in puts.items() if place[0] > seen.get(path, 0)}


@pytest.mark.parametrize("kind", ["lmdb", "redis"])
@fault_case(
    "eight processes write one dataset, the same names and others; one of them is SIGKILLed",
    promise="of a name the put of the greatest commit stands, within a commit the later; nothing of the others is lost, nothing acknowledged of the killed one; the index is what recovery builds",
    bound_s=60,
    check="metadata.commit_records:Holes.add=none",
)
def test_eight_writers(kind: str, request: pytest.FixtureRequest, measured: Measured) -> None:
    with folder_in_memory() as folder:
        (folder / "store").mkdir()
        index = f"lmdb://{folder}/index" if kind == "lmdb" else request.getfixturevalue("redis_url")
        places = Places(f"file://{folder}/store", index)
        make(places, folder)
        tolds = [folder / f"told-{number}" for number in range(WRITERS)]
        with measured.felt():
            writers = [
                Running(folder, work(places, number, told)) for number, told in enumerate(tolds)
            ]
            eventually(lambda: lines(tolds[KILLED]) >= 3, "the writer that is to be killed waits")
            os.kill(writers[KILLED].pid, signal.SIGKILL)
            ends = [writer.end() for writer in writers]
        for number, ended in enumerate(ends):
            expected = -signal.SIGKILL if number == KILLED else 0
            assert ended.code == expected, (number, ended.errors)
        with places.opened() as dataset:
            assert_promised(dataset, tolds)
            measured.note(f"{dataset.namespace.state().generation} commits, all as promised")


@fault_case(
    "the Redis of the index is SIGKILLed and comes back empty while eight processes write one dataset",
    promise="nothing is lost; who goes on puts the index right, at the latest `dlcmd recover` does",
    bound_s=90,
    check="dieselfs.dataset.publisher:Publisher._repair=none",
)
def test_eight_writers_of_an_index_that_is_lost(
    own_redis_server: RedisProcess, measured: Measured
) -> None:
    with folder_in_memory() as folder:
        (folder / "store").mkdir()
        places = Places(f"file://{folder}/store", own_redis_server.url)
        make(places, folder)
        tolds = [folder / f"told-{number}" for number in range(WRITERS)]
        with measured.felt():
            writers = [
                Running(folder, work(places, number, told)) for number, told in enumerate(tolds)
            ]
            eventually(lambda: all(lines(told) for told in tolds), "the writers begin")
            own_redis_server.lose_all()
            # Writers do not wait while another one puts the index right. This one outlives that.
            loss = "the index has lost recent records"
            eventually(lambda: loss in writers[KILLED].errors, "the loss is noticed")
            os.kill(writers[KILLED].pid, signal.SIGKILL)
            ends = [writer.end() for writer in writers]
        for number, ended in enumerate(ends):
            # A command that opens the index while nobody answers, or it is being put right, says so
            # and ends.
            allowed = (0, ExitCode.TEMPORARY, ExitCode.INTEGRITY) if number in WITH_DLCMD else (0,)
            assert number == KILLED or ended.code in allowed, (number, ended)
        with places.opened() as dataset:
            left = len(index_differences(dataset))
            recover(dataset.store, dataset.index, places.name)
            assert_promised(dataset, tolds)
        measured.note(f"{left} records wrong before recovery, none after; nothing lost")


def make(places: Places, folder: Path) -> None:
    index = open_index(places.index)
    Client.connect(
        places.name,
        store=open_store(places.store),
        index=index,
        snapshot_folder=folder,
        create=True,
    ).close()
    index.close()


def work(places: Places, number: int, told: Path) -> Callable[..., int]:
    def of_writer(*_: object) -> int:
        if number in WITH_DLCMD:
            return put_with_dlcmd(places, number, told)
        write(places, number, told)
        return 0

    return of_writer


def lines(told: Path) -> int:
    return len(told.read_text().splitlines()) if told.exists() else 0


def assert_promised(dataset: Dataset, tolds: Sequence[Path]) -> None:
    """What every writer was told is there, and the index is what the store says."""
    found = files_of(dataset)
    for told in tolds:
        for path, data in promised(told).items():
            # The killed writer may have overwritten it in a commit that it did not hear of.
            newer = path == b"w%d/always" % KILLED
            assert newer or found[path] == data, path
    assert_winners(dataset, found)
    assert index_differences(dataset) == []


def assert_winners(dataset: Dataset, found: Mapping[bytes, bytes]) -> None:
    expected = current(dataset)
    assert found.keys() == expected.keys()
    for path, (_, chunk, position) in expected.items():
        row = dataset.namespace.stat(path).row
        assert (bytes(row["chunk"]), int(row["position"])) == (chunk, position), path
