"""A process that applies commits ends between any two steps; whoever comes next makes the index
that an undisturbed one makes."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from metadata.kv.key_value_store import KeyValueStore
from metadata.kv.lmdb_file import LmdbFileStore
from metadata.kv.memory import MemoryStore
from metadata.kv.redis_cluster import RedisClusterStore
from metadata.kv.redis_server import RedisServerStore
from metadata.namespace import Namespace
from tests.contracts.key_value_store_contract import fork
from tests.metadata.commit_histories import (
    DATASET,
    History,
    delete,
    dump,
    history,
    make_directory,
    map_keys,
    put,
    random_history,
)
from tests.metadata.stepped_index import Piecewise

OpenIndex = Callable[[], KeyValueStore]

TALE = history(
    [
        [[put(b"a/x"), put(b"a/y"), make_directory(b"a", 0o700)], [put(b"b/c/z"), put(b"a/x", 30)]],
        [
            [put(b"a/x", 40), delete(b"a/y", 2)],
            [delete(b"b/c/z", 2), delete(b"b/c", 2, directory=True)],
        ],
        [[put(b"b/c/new"), delete(b"a/x", 2)], [make_directory(b"", 0o711)]],
    ],
    retired={4: [1]},
)
"""Overwrites, deletions, a directory that comes back, the root, a chunk that is retired."""


def expected_of(tale: History) -> dict[bytes, dict[bytes, bytes]]:
    index = MemoryStore()
    tale.apply_to(index)
    return dump(index, tale)


def catch_up(index: KeyValueStore, tale: History) -> None:
    namespace = Namespace(index, DATASET)
    start = namespace.state().generation
    for commit, heads in list(zip(tale.commits, tale.heads, strict=True))[start:]:
        namespace.apply(commit, heads)


def steps_of(tale: History) -> int:
    count = [0]

    def step() -> None:
        count[0] += 1

    catch_up(Piecewise(MemoryStore(), step), tale)
    return count[0]


@pytest.fixture(params=["memory", "lmdb", "redis", "cluster"])
def open_index(request: pytest.FixtureRequest, tmp_path: Path) -> OpenIndex:
    if request.param == "memory":
        memory = MemoryStore()
        return lambda: memory
    if request.param == "lmdb":
        return lambda: LmdbFileStore(tmp_path / "index")
    if request.param == "redis":
        url = request.getfixturevalue("redis_url")
        return lambda: RedisServerStore(url)
    url = request.getfixturevalue("redis_cluster_url")
    return lambda: RedisClusterStore(url)


@pytest.fixture
def index(open_index: OpenIndex) -> Iterator[KeyValueStore]:
    index = open_index()
    yield index
    index.close()


def test_stopped_at_any_step(index: KeyValueStore) -> None:
    expected, total = expected_of(TALE), steps_of(TALE)
    assert total > 40
    for calls in range(0, total + 1, 1 if isinstance(index, MemoryStore) else 3):
        index.drop(map_keys(TALE))
        failing = Piecewise.failing_after(index, calls, seed=calls)
        assert failing.stopped(lambda failing=failing: catch_up(failing, TALE)) == (calls < total)
        catch_up(index, TALE)
        assert dump(index, TALE) == expected, calls


def test_stopped_again_and_again() -> None:
    """Each next process comes a little further, and some stop at once."""
    for seed in range(150):
        draw = random.Random(seed)
        tale = random_history(draw)
        index = MemoryStore()
        while True:
            failing = Piecewise.failing_after(index, draw.randint(0, 60), seed=draw.randint(0, 999))
            if not failing.stopped(lambda failing=failing, tale=tale: catch_up(failing, tale)):
                break
        assert dump(index, tale) == expected_of(tale), seed


def test_killed_at_any_moment(open_index: OpenIndex, index: KeyValueStore) -> None:
    if isinstance(index, MemoryStore):
        return  # ends with its process: nothing is left to compare
    expected, total = expected_of(TALE), steps_of(TALE)
    draw = random.Random(0)
    for _ in range(8):
        index.drop(map_keys(TALE))
        kill_after(draw.randint(1, total), open_index)
        catch_up(index, TALE)
        assert dump(index, TALE) == expected


def kill_after(steps: int, open_index: OpenIndex) -> None:
    """A child applies the tale and is killed as soon as it has told of so many steps."""
    reading, writing = os.pipe()

    def child() -> None:
        os.close(reading)
        store = open_index()
        catch_up(Piecewise(store, lambda: assert_written(writing)), TALE)
        signal.pause()

    process = fork(child)
    os.close(writing)
    try:
        told = 0
        while told < steps and (data := os.read(reading, steps - told)):
            told += len(data)
        assert told == steps, "the child ended before its time"
    finally:
        os.kill(process, signal.SIGKILL)
        os.waitpid(process, 0)
        os.close(reading)


def assert_written(fd: int) -> None:
    assert os.write(fd, b".") == 1


def test_a_retired_chunk_does_not_come_back_with_a_slow_process() -> None:
    """It read the chunk's record while the chunk lived, and puts holes into it after another
    process has retired it."""
    tale = history([[[put(b"a"), put(b"b")]], [[put(b"a", 20)]], [[put(b"c")]]], retired={4: [1]})
    expected = expected_of(tale)
    index = MemoryStore()
    tale.apply_to(index)  # up to the end: chunk 1 is retired
    for calls in range(200):
        late = MemoryStore()
        early = History(tale.commits[:2], tale.heads[:2], tale.entries[:2])
        early.apply_to(late)
        passed = [False]
        left = [calls]

        def step(
            left: list[int] = left, passed: list[bool] = passed, late: MemoryStore = late
        ) -> None:
            left[0] -= 1
            if left[0] < 0 and not passed[0]:
                passed[0] = True
                tale.apply_to(late, 2)

        Namespace(Piecewise(late, step), DATASET).apply(tale.commits[2], tale.heads[2])
        if not passed[0]:
            assert calls > 5
            return
        assert dump(late, tale) == expected, calls
        assert Namespace(late, DATASET).chunks().keys() == {
            ref.id.value for commit in tale.commits[2:] for ref in commit.added
        }
