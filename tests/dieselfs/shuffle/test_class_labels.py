"""Class folders by rule."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from dieselfs.errors import UsageError
from dieselfs.shuffle.class_labels import NOT_READ, class_folder_labels, labels_by_path
from metadata.errors import SnapshotRefused
from metadata.snapshot import Snapshot
from tests.metadata.snapshot_trees import File, Tree, build

PATHS = [
    b"README",
    b"train/cat/1.jpg",
    b"train/cat/2.jpg",
    b"train/cat/big/3.jpg",
    b"train/dog/4.jpg",
    b"train/list.txt",
    b"val/cat/5.jpg",
]


@pytest.fixture
def snapshot(tmp_path: Path) -> Iterator[Snapshot]:
    files = {path: File(number % 2, number) for number, path in enumerate(PATHS)}
    with Snapshot.open(build(Tree(files), tmp_path)) as snapshot:
        yield snapshot


def classes(snapshot: Snapshot, labels: np.ndarray) -> set[frozenset[bytes]]:
    """The paths of each class; of what is not read, none."""
    found: dict[int, set[bytes]] = {}
    for inode, label in enumerate(labels.tolist()):
        if label != NOT_READ:
            found.setdefault(label, set()).add(snapshot.path_of(inode))
    return {frozenset(paths) for paths in found.values()}


def test_links_are_not_read(tmp_path: Path) -> None:
    files = {path: File(0, number) for number, path in enumerate(PATHS)}
    files[b"train/cat/link"] = File(0, 9, 0, 5, mode=0o120777)
    with Snapshot.open(build(Tree(files), tmp_path)) as snapshot:
        found = classes(snapshot, class_folder_labels(snapshot, "parent", "train"))
        assert found == as_classes([1, 2], [3], [4], [5])
        by_path = labels_by_path(snapshot, lambda path: path.partition(b"/")[0])
        assert classes(snapshot, by_path) == as_classes([0], [1, 2, 3, 4, 5], [6])


def as_classes(*groups: list[int]) -> set[frozenset[bytes]]:
    return {frozenset(PATHS[number] for number in group) for group in groups}


@pytest.mark.parametrize(
    ("rule", "under", "expected"),
    [
        ("parent", "", as_classes([0], [1, 2], [3], [4], [5], [6])),
        ("parent", "train", as_classes([1, 2], [3], [4], [5])),
        ("top", "", as_classes([0], [1, 2, 3, 4, 5], [6])),
        ("top", "train", as_classes([1, 2, 3], [4], [5])),
        ("top", b"/train/cat/", as_classes([1, 2], [3])),
    ],
)
def test_a_class_is_a_folder(
    snapshot: Snapshot, rule: str, under: str, expected: set[frozenset[bytes]]
) -> None:
    assert classes(snapshot, class_folder_labels(snapshot, rule, under)) == expected


@pytest.mark.parametrize("under", ["test", "README"])
def test_a_directory_that_is_not_there_is_refused(snapshot: Snapshot, under: str) -> None:
    with pytest.raises(UsageError, match=f"{under}: no such directory"):
        class_folder_labels(snapshot, under=under)


def test_an_unknown_rule_is_refused(snapshot: Snapshot) -> None:
    with pytest.raises(ValueError, match="'parent' or 'top'"):
        class_folder_labels(snapshot, "child")


def test_any_function_of_the_path_gives_classes(snapshot: Snapshot) -> None:
    labels = labels_by_path(snapshot, lambda path: path[-5:] if path.endswith(b"jpg") else None)
    assert classes(snapshot, labels) == as_classes([1], [2], [3], [4], [6])
    last = labels_by_path(snapshot, lambda path: path.rpartition(b".")[2])
    assert classes(snapshot, last) == as_classes([0], [1, 2, 3, 4, 6], [5])


@pytest.mark.parametrize("section", ["directory_parent", "parent"])
def test_directories_that_are_no_tree_are_refused(snapshot: Snapshot, section: str) -> None:
    start, size = snapshot.header.sections[section]
    with snapshot.path.open("r+b") as file:
        file.seek(start + size - 4)
        file.write((len(PATHS) + 99).to_bytes(4, "little"))
    with (
        Snapshot.open(snapshot.path) as damaged,
        pytest.raises(SnapshotRefused, match="do not form a tree"),
    ):
        class_folder_labels(damaged)


def test_a_dataset_without_files_has_no_labels(tmp_path: Path) -> None:
    with Snapshot.open(build(Tree({}), tmp_path)) as snapshot:
        assert len(class_folder_labels(snapshot)) == len(labels_by_path(snapshot, len)) == 0
