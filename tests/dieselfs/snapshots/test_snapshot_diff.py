"""Differences of snapshots, against differences of dictionaries."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from chunkstore.stores.memory import MemoryObjectStore
from dieselfs.dataset.dataset import Dataset, open_dataset, remove_dataset
from dieselfs.dataset.dataset_writer import DatasetWriter
from dieselfs.snapshots import lifecycle
from dieselfs.snapshots.snapshot_diff import Change, ChangeKind, diff
from metadata.kv.memory import MemoryStore
from metadata.snapshot import Snapshot

File = tuple[bytes, int, int]
"""Content, mode, mtime."""
Found = list[tuple[bytes, str, bool]]


@pytest.fixture
def dataset() -> Dataset:
    return open_dataset(MemoryObjectStore(), MemoryStore(), "pets", create=True)


def make(dataset: Dataset, files: dict[bytes, File], folder: Path) -> Snapshot:
    """The dataset changed so that it holds `files` and no directory without any; its snapshot."""
    namespace = dataset.namespace
    dataset.catch_up()
    present = {
        (listing.path + b"/" if listing.path else b"") + name
        for listing in namespace.walk()
        for name in listing.file_names
    }
    wanted = {path.rpartition(b"/")[0] for path in files}
    with DatasetWriter(dataset) as writer:
        for path in present - files.keys():
            writer.delete(namespace.stat(path))
    applied = dataset.catch_up().generation
    with DatasetWriter(dataset) as writer:
        for listing in sorted(namespace.walk(), key=lambda one: one.path, reverse=True):
            if listing.path and not any(
                d == listing.path or d.startswith(listing.path + b"/") for d in wanted
            ):
                writer.delete(namespace.stat(listing.path), applied)
    with DatasetWriter(dataset) as writer:
        for path, (data, mode, mtime_ns) in files.items():
            writer.put(path, data, mode, mtime_ns)
    return Snapshot.open(lifecycle.create(dataset, folder, publish=False))


def expected(before: dict[bytes, File], after: dict[bytes, File]) -> set[tuple[bytes, str]]:
    found = set()
    for path in before.keys() | after.keys():
        if path not in after:
            found.add((path, "removed"))
        elif path not in before:
            found.add((path, "added"))
        elif before[path][0] != after[path][0]:
            found.add((path, "changed"))
        elif before[path] != after[path]:
            found.add((path, "attributes"))
    return found


def directories(files: dict[bytes, File]) -> set[bytes]:
    found = set()
    for path in files:
        while path := path.rpartition(b"/")[0]:
            found.add(path)
    return found


def simple(changes: list[Change]) -> Found:
    return [(change.path, str(change.kind), change.is_directory) for change in changes]


def test_links_for_files_and_other_targets(dataset: Dataset, tmp_path: Path) -> None:
    """A file with the bytes of a target is not the link."""
    with DatasetWriter(dataset) as writer:
        writer.put(b"becomes link", b"x", mtime_ns=1)
        for path in (b"becomes file", b"moves", b"stays", b"touched"):
            writer.put_link(path, b"x", 1)
    old = Snapshot.open(lifecycle.create(dataset, tmp_path, publish=False))
    with DatasetWriter(dataset) as writer:
        writer.put_link(b"becomes link", b"x", 1)
        writer.put(b"becomes file", b"x", mtime_ns=1)
        writer.put_link(b"moves", b"y", 1)
        writer.put_link(b"touched", b"x", 2)
        writer.put_link(b"new", b"x", 1)
    new = Snapshot.open(lifecycle.create(dataset, tmp_path, publish=False))
    assert {(path, kind) for path, kind, _ in simple(list(diff(old, new)))} == {
        (b"becomes link", "changed"),
        (b"becomes file", "changed"),
        (b"moves", "changed"),
        (b"touched", "attributes"),
        (b"new", "added"),
    }


def test_every_kind(dataset: Dataset, tmp_path: Path) -> None:
    before = {
        b"same": (b"1", 0o644, 5),
        b"gone": (b"2", 0o644, 5),
        b"content": (b"3", 0o644, 5),
        b"mode": (b"4", 0o644, 5),
        b"time": (b"5", 0o644, 5),
        b"type/now/a/directory": (b"6", 0o644, 5),
        b"was": (b"7", 0o644, 5),
        b"odd/caf\xe9\n": (b"8", 0o644, 5),
    }
    after = before | {
        b"content": (b"x", 0o644, 5),
        b"mode": (b"4", 0o600, 5),
        b"time": (b"5", 0o644, 6),
        b"type": (b"a file", 0o644, 5),
        b"was/a/file": (b"7", 0o644, 5),
        b"odd/caf\xe9\n": (b"9", 0o644, 5),
    }
    for path in (b"gone", b"type/now/a/directory", b"was"):
        del after[path]
    with make(dataset, before, tmp_path) as old, make(dataset, after, tmp_path) as new:
        found = simple(list(diff(old, new)))
        there = [c for c in found if (c[0] and c[1] != "attributes") or not c[2]]
        assert there == [
            (b"content", "changed", False),
            (b"gone", "removed", False),
            (b"mode", "attributes", False),
            (b"odd/caf\xe9\n", "changed", False),
            (b"time", "attributes", False),
            (b"type", "removed", True),
            (b"type", "added", False),
            (b"type/now", "removed", True),
            (b"type/now/a", "removed", True),
            (b"type/now/a/directory", "removed", False),
            (b"was", "removed", False),
            (b"was", "added", True),
            (b"was/a", "added", True),
            (b"was/a/file", "added", False),
        ]
        backwards = simple(list(diff(new, old)))
        assert {(p, k) for p, k, d in backwards if not d} == expected(after, before)


def test_inodes_tell_what_was_and_what_is(dataset: Dataset, tmp_path: Path) -> None:
    before = {b"a": (b"1", 0o644, 5), b"b": (b"22", 0o644, 5)}
    after = {b"b": (b"333", 0o644, 5), b"c": (b"4444", 0o644, 5)}
    with make(dataset, before, tmp_path) as old, make(dataset, after, tmp_path) as new:
        sizes = {
            change.path: (
                None if change.before is None else old.size(change.before),
                None if change.after is None else new.size(change.after),
            )
            for change in diff(old, new)
            if not change.is_directory
        }
    assert sizes == {b"a": (1, None), b"b": (2, 3), b"c": (None, 4)}


@pytest.mark.parametrize("seed", range(6))
def test_random_trees(dataset: Dataset, tmp_path: Path, seed: int) -> None:
    random_ = random.Random(seed)

    def tree() -> dict[bytes, File]:
        tops = [b"", b"a/", b"a/b/", b"a.b/", b"c/d/e/"]
        found: dict[bytes, File] = {}
        for _ in range(random_.choice([0, 3, 40])):
            path = random_.choice(tops) + b"f%d" % random_.randrange(20)
            data = b"x" * random_.randrange(3)
            found[path] = (data, random_.choice([0o644, 0o600]), random_.randrange(2))
        return found

    before, after = tree(), tree()
    with make(dataset, before, tmp_path) as old, make(dataset, after, tmp_path) as new:
        changes = list(diff(old, new))
    assert {(c.path, str(c.kind)) for c in changes if not c.is_directory} == expected(before, after)
    was, now = directories(before), directories(after)
    shape = {(c.path, str(c.kind)) for c in changes if c.is_directory and c.kind != "attributes"}
    assert shape == {(d, "removed") for d in was - now} | {(d, "added") for d in now - was}
    assert [c.path for c in changes] == sorted(c.path for c in changes)


@pytest.mark.parametrize("seed", range(4))
def test_chunks_that_both_have(dataset: Dataset, tmp_path: Path, seed: int) -> None:
    """Between any two moments of a history of small changes, forwards and backwards."""
    random_ = random.Random(seed)
    files: dict[bytes, File] = {}
    history: list[tuple[dict[bytes, File], Snapshot]] = []
    for _ in range(5):
        with DatasetWriter(dataset, open_chunks=2) as writer:
            for _ in range(random_.choice([1, 30])):
                path = b"d%d/f%d" % (random_.randrange(3), random_.randrange(30))
                files[path] = (b"x" * random_.randrange(3), 0o644, random_.randrange(2))
                writer.put(path, *files[path])
        with DatasetWriter(dataset) as writer:
            for path in random_.sample(sorted(files), random_.randrange(2)):
                writer.delete(dataset.namespace.stat(path))
                del files[path]
        made = Snapshot.open(lifecycle.create(dataset, tmp_path, publish=False))
        history.append((dict(files), made))
    for was, old in history:
        for now, new in history:
            found = {(c.path, str(c.kind)) for c in diff(old, new) if not c.is_directory}
            assert found == expected(was, now)
    for _, made in history:
        made.close()


def test_more_than_a_block(
    dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dieselfs.snapshots.snapshot_diff._FILES_A_BLOCK", 7)
    before = {b"%03d" % n: (b"%d" % n, 0o644, 5) for n in range(50)}
    after = {path: file for path, file in before.items() if path[-1:] != b"3"}
    after |= {b"x%03d" % n: (b"", 0o644, 5) for n in range(30)}
    with make(dataset, before, tmp_path) as old, make(dataset, after, tmp_path) as new:
        files = {(c.path, str(c.kind)) for c in diff(old, new) if not c.is_directory}
    assert files == expected(before, after)


def test_of_directories_the_mode_counts(dataset: Dataset, tmp_path: Path) -> None:
    with make(dataset, {b"d/a": (b"1", 0o644, 5)}, tmp_path) as old:
        with DatasetWriter(dataset) as writer:
            writer.put_directory(b"d", 0o700, 77)
            writer.put_directory(b"", 0o755, 78)
        with Snapshot.open(lifecycle.create(dataset, tmp_path, publish=False)) as new:
            assert simple(list(diff(old, new))) == [(b"d", "attributes", True)]


def test_of_equal_snapshots_nothing(dataset: Dataset, tmp_path: Path) -> None:
    with make(dataset, {b"a": (b"1", 0o644, 5)}, tmp_path) as one:
        assert list(diff(one, one)) == []


def test_of_different_datasets(dataset: Dataset, tmp_path: Path) -> None:
    with make(dataset, {b"a": (b"1", 0o644, 5)}, tmp_path) as one:
        remove_dataset(dataset.store, dataset.index, "pets")
        again = open_dataset(dataset.store, dataset.index, "pets", create=True)
        with (
            make(again, {b"a": (b"1", 0o644, 5)}, tmp_path) as other,
            pytest.raises(ValueError, match="different datasets"),
        ):
            diff(one, other)


def test_kinds_are_words_of_the_command() -> None:
    assert [str(kind) for kind in ChangeKind] == ["added", "removed", "changed", "attributes"]
