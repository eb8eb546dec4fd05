"""Thousands of short histories against the reference: what an index says is a pure function of the
commits."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from chunkstore.chunk_format import KIND_FILE
from metadata.dataset_state import register_dataset
from metadata.kv.memory import MemoryStore
from metadata.namespace import Namespace
from tests.metadata.commit_histories import (
    DATASET,
    History,
    Reference,
    _above,
    chunk_id,
    decoded,
    dump,
    random_history,
)
from tests.metadata.stepped_index import Piecewise, Turns

HISTORIES = 300


def check(index: MemoryStore, history: History) -> None:
    """The index equals the reference: names, places, attributes, totals, and every chunk's
    holes."""
    expected = Reference.of(history)
    namespace = Namespace(index, DATASET)
    files, directories = {}, {}
    for listing in namespace.walk():
        prefix = listing.path + b"/" if listing.path else b""
        files.update(
            (prefix + n, row) for n, row in zip(listing.file_names, listing.files, strict=True)
        )
        directories.update(
            (prefix + n, row)
            for n, row in zip(listing.directory_names, listing.directories, strict=True)
        )
    assert directories.keys() == expected.visible_directories()
    visible = expected.visible_files()
    assert files.keys() == visible.keys()
    for path, row in files.items():
        current = visible[path]
        assert current.place is not None
        assert (bytes(row["chunk"]), int(row["position"])) == (
            chunk_id(current.place[0]).value,
            current.place[1],
        )
        assert (int(row["offset"]), int(row["length"])) == (current.offset, current.entry.size)
        assert (int(row["mode"]), int(row["mtime_ns"])) == (
            current.entry.mode,
            current.entry.mtime_ns,
        )
        assert int(row["version"]) >> 1 == current.version
        assert namespace.stat(path).row == row
    for path, row in directories.items():
        current = expected.directories[path]
        assert (int(row["mode"]), int(row["mtime_ns"])) == (
            current.entry.mode,
            current.entry.mtime_ns,
        ), path
        assert int(row["version"]) >> 1 == current.version
        assert namespace.stat(path).is_directory
    check_totals(namespace, expected)
    check_root(namespace, expected, history)


def check_totals(namespace: Namespace, expected: Reference) -> None:
    live = expected.live(expected.files)
    state = namespace.state()
    assert state.generation == expected.generation
    assert state.updated_ns == 1000 * max(expected.generation, 1)
    assert state.files == len(live)
    assert state.bytes == sum(found.entry.size for found in live.values())
    assert state.directories == len(expected.live(expected.directories))
    assert state.chunks == len(expected.chunks)
    records = namespace.chunks()
    assert records.keys() == {chunk_id(number).value for number in expected.chunks}
    for number, truth in expected.chunks.items():
        record = records[chunk_id(number).value]
        holes = {
            position
            for position in range(record.entry_count)
            if record.deleted[position >> 3] & 1 << (position & 7)
        }
        assert holes == truth.holes
        assert record.deleted_count == len(holes)
        assert record.deleted_bytes == sum(truth.entries[position].size for position in holes)
        assert record.entry_count == len(truth.entries)
        assert record.file_count == sum(entry.kind == KIND_FILE for entry in truth.entries)
        assert record.generation == truth.generation
        assert record.updated_ns == 1000 * truth.generation


def check_root(namespace: Namespace, expected: Reference, history: History) -> None:
    root, put = namespace.root(), expected.directories.get(b"")
    if put is None:
        assert (int(root["mode"]), int(root["mtime_ns"])) == (
            0o40755,
            history.commits[-1].time_ns,
        )
    else:
        assert (int(root["mode"]), int(root["mtime_ns"])) == (put.entry.mode, put.entry.mtime_ns)


@pytest.mark.parametrize("part", range(4))
def test_an_index_is_what_the_commits_say(part: int) -> None:
    for seed in range(part, HISTORIES, 4):
        history = random_history(random.Random(seed))
        index = MemoryStore()
        history.apply_to(index)
        check(index, history)
        again = MemoryStore()
        history.apply_to(again)
        assert dump(again, history) == dump(index, history), seed
        # Once more, all or the last: nothing changes.
        history.apply_to(index)
        history.apply_to(index, len(history.commits) - 1)
        assert dump(index, history) == dump(again, history), seed


def test_after_every_single_commit() -> None:
    for seed in range(100):
        whole = random_history(random.Random(-seed - 1))
        index = MemoryStore()
        for end in range(1, len(whole.commits) + 1):
            so_far = History(whole.commits[:end], whole.heads[:end], whole.entries[:end])
            so_far.apply_to(index, end - 1)
            check(index, so_far)


@pytest.mark.parametrize("processes", [2, 3])
def test_appliers_that_race_end_with_the_same_index(processes: int) -> None:
    """Every port call, and every single field of a put, is a point where another one may come in
    between."""
    for seed in range(120):
        draw = random.Random(seed)
        history = random_history(draw, max_commits=3)
        undisturbed = MemoryStore()
        history.apply_to(undisturbed)
        shared = MemoryStore()
        turns = Turns(draw)
        for number in range(processes):

            def race(
                step: Callable[[], None],
                shared: MemoryStore = shared,
                tale: History = history,
                seed: int = number,
            ) -> None:
                _catch_up(Piecewise(shared, step, random.Random(seed)), tale)

            turns.add(race)
        turns.run()
        assert dump(shared, history) == dump(undisturbed, history), seed


def _catch_up(index: Piecewise, history: History) -> None:
    """As `Namespace.catch_up` does: from the generation applied on."""
    namespace = Namespace(index, DATASET)
    start = namespace.state().generation
    for commit, heads in list(zip(history.commits, history.heads, strict=True))[start:]:
        namespace.apply(commit, heads)
        assert decoded(commit, heads) is not None


def test_forgetting_leaves_nothing() -> None:
    for seed in range(100):
        history = random_history(random.Random(seed), sane=True)
        index = MemoryStore()
        register_dataset(index, DATASET, 5_000)
        history.apply_to(index)
        Namespace(index, DATASET).forget()
        assert index._maps == {}, seed


def test_an_interrupted_forgetting_is_finished_by_another() -> None:
    history = random_history(random.Random(3), sane=True)
    for limit in range(100):
        index = MemoryStore()
        register_dataset(index, DATASET, 5_000)
        history.apply_to(index)
        failing = Piecewise.failing_after(index, limit)
        if not failing.stopped(lambda failing=failing: Namespace(failing, DATASET).forget()):
            assert index._maps == {}
            return
        Namespace(index, DATASET).forget()
        assert index._maps == {}, limit
    raise AssertionError("the limit was never reached")


def test_the_reference_knows_ancestors() -> None:
    assert list(_above(b"a/b/c")) == [b"a/b", b"a"]
    assert list(_above(b"a")) == []
