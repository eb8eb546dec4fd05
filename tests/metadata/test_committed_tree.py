"""A snapshot from commits alone is that of a scan of the index, byte for byte, or is refused."""

import random
from pathlib import Path

import pytest

from metadata.committed_tree import CommittedTree, NotOnlyNew
from metadata.errors import RecordCorrupt
from metadata.kv.memory import MemoryStore
from metadata.namespace import Namespace
from metadata.snapshot_builder import build_snapshot
from tests.metadata.commit_histories import (
    DATASET,
    Entry,
    History,
    decoded,
    delete,
    history,
    make_directory,
    put,
    random_history,
)


def scanned(tale: History, folder: Path) -> Path:
    index = MemoryStore()
    tale.apply_to(index)
    names = Namespace(index, DATASET)
    return build_snapshot(
        DATASET, names.state(), names.root(), names.walk(), names.chunks(), folder
    )


def committed(tale: History, folder: Path, most_files: int = 1000) -> Path:
    tree = CommittedTree(DATASET, most_files)
    for commit, heads in zip(tale.commits[1:], tale.heads[1:], strict=True):
        tree.add(commit, decoded(commit, heads))
    return tree.write(folder)[0]


def only_puts(draw: random.Random) -> History:
    """Files, and directories again and again, in any order."""
    paths = [f"{draw.choice('abc/')}/{number}".strip("/").encode() for number in range(30)]
    places = [b"", b"a", b"b/deep/er", b"empty"]
    commits: list[list[list[Entry]]] = []
    while paths:
        chunks = []
        for _ in range(draw.randint(1, 3)):
            chunk = [put(paths.pop(), draw.randint(0, 9)) for _ in range(3) if paths]
            if not commits:
                chunk += [make_directory(places.pop()) for _ in range(2) if places]
            chunks += [chunk] if chunk else []
        commits.append(chunks)
    return history(commits)


@pytest.mark.parametrize("seed", range(20))
def test_puts_alone_need_no_scan(seed: int, tmp_path: Path) -> None:
    tale = only_puts(random.Random(seed))
    path, expected = committed(tale, tmp_path / "a"), scanned(tale, tmp_path / "b")
    assert (path.name, path.read_bytes()) == (expected.name, expected.read_bytes())


def test_any_other_history_is_refused_or_gives_the_same(tmp_path: Path) -> None:
    refused = same = 0
    for seed in range(400):
        tale = random_history(random.Random(seed), 2)
        try:
            path = committed(tale, tmp_path / "a")
        except NotOnlyNew:
            refused += 1
            continue
        try:
            expected = scanned(tale, tmp_path / "b")
        except RecordCorrupt:
            continue
        assert path.read_bytes() == expected.read_bytes(), seed
        same += 1
    assert refused > 50
    assert same > 5


@pytest.mark.parametrize(
    "commits",
    [
        [[[put(b"a")]], [[put(b"a")]]],
        [[[put(b"a"), put(b"a")]]],
        [[[put(b"a")]], [[delete(b"a", 2)]]],
        [[[put(b"a")]], [[put(b"a/b")]]],
        [[[put(b"a"), put(b"b"), put(b"c"), put(b"d")]]],
    ],
    ids=["again", "twice", "deleted", "hidden", "too-many"],
)
def test_what_is_not_only_new_is_refused(commits: list[list[list[Entry]]], tmp_path: Path) -> None:
    with pytest.raises(NotOnlyNew):
        committed(history(commits), tmp_path, most_files=3)


def test_a_commit_that_is_missing_is_noticed() -> None:
    tale = history([[[put(b"a")]], [[put(b"b")]]])
    tree = CommittedTree(DATASET, 3)
    with pytest.raises(NotOnlyNew):
        tree.add(tale.commits[2], decoded(tale.commits[2], tale.heads[2]))
