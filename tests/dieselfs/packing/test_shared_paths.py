"""Two sources of one put that have the same path: neither is put, and both are named."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from chunkstore.stores.local_directory import LocalDirectory
from dieselfs.dataset.dataset import open_dataset
from dieselfs.dataset.dataset_writer import DatasetWriter
from dieselfs.dataset.path_filter import PathFilter, Rule
from dieselfs.packing.pack import pack
from dieselfs.packing.preflight import BadSources, preflight
from dieselfs.packing.put_request import FileList, PackProgress, PackRequest
from dieselfs.packing.source_tree import SourceTree
from metadata.kv.memory import MemoryStore

Source = SourceTree | FileList


@pytest.fixture
def disk(tmp_path: Path) -> Path:
    for name in ("one/f", "one/d/g", "two/f", "two/e/h", "three/d/g/below", "four/k"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    return tmp_path


def tree(disk: Path, name: str, target: str = "", **rules: object) -> SourceTree:
    return SourceTree(os.fsencode(disk / name), os.fsencode(target), **rules)  # type: ignore[arg-type]


def listed(disk: Path, name: str, *paths: bytes) -> FileList:
    return FileList(os.fsencode(disk / name), b"", paths)


CONFLICTS: dict[str, tuple[Callable[[Path], list[Source]], str, str]] = {
    "two trees": (lambda disk: [tree(disk, "one"), tree(disk, "two")], "one/f", "two/f"),
    "a tree in a tree": (
        lambda disk: [tree(disk, "one"), tree(disk, "four", "f")],
        "one/f",
        "four",
    ),
    "two named files": (
        lambda disk: [tree(disk, "one/f", "f"), tree(disk, "two/f", "f")],
        "one/f",
        "two/f",
    ),
    "a named file in a tree": (
        lambda disk: [tree(disk, "two/e/h", "in/f"), tree(disk, "one", "in")],
        "one/f",
        "two/e/h",
    ),
    "a file and a directory": (
        lambda disk: [tree(disk, "three"), tree(disk, "one")],
        "one/d/g",
        "three/d/g",
    ),
    "a named file and a directory": (
        lambda disk: [tree(disk, "one"), tree(disk, "four/k", "d")],
        "one/d",
        "four/k",
    ),
    "a named file above a named file": (
        lambda disk: [tree(disk, "one/f", "x"), tree(disk, "two/f", "x/y")],
        "one/f",
        "two",
    ),
    "two lists": (
        lambda disk: [listed(disk, "one", b"f", b"d/g"), listed(disk, "two", b"f", b"e/h")],
        "one/f",
        "two/f",
    ),
    "a list and a tree": (
        lambda disk: [listed(disk, "three", b"d/g/below"), tree(disk, "one")],
        "one/d/g",
        "three/d/g",
    ),
}


@pytest.mark.parametrize("case", CONFLICTS)
@pytest.mark.parametrize("turned", [False, True], ids=["", "turned"])
def test_both_are_named(disk: Path, case: str, *, turned: bool) -> None:
    sources_of, one, other = CONFLICTS[case]
    sources = sources_of(disk)
    with pytest.raises(BadSources, match="would both be") as found:
        preflight(sources[::-1] if turned else sources, PackProgress())
    assert len(found.value.reasons) == 1
    assert {str(disk / one), str(disk / other)} <= set(found.value.reasons[0].split(" "))


def without(pattern: str) -> PathFilter:
    return PathFilter((Rule(False, pattern),))


TOGETHER: dict[str, Callable[[Path], list[Source]]] = {
    "directories merge": lambda disk: [tree(disk, "two"), tree(disk, "three"), tree(disk, "four")],
    "other targets": lambda disk: [tree(disk, "one", "x"), tree(disk, "two", "x/y")],
    "left out": lambda disk: [tree(disk, "one", filters=without("f")), tree(disk, "two")],
    "a directory left out": lambda disk: [
        tree(disk, "one"),
        tree(disk, "three", filters=without("d")),
    ],
    "named twice": lambda disk: [tree(disk, "one"), tree(disk, "one/f", "f"), tree(disk, "one")],
}


@pytest.mark.parametrize("case", TOGETHER)
def test_these_can_be_put_together(disk: Path, case: str) -> None:
    preflight(TOGETHER[case](disk), PackProgress())


def test_the_dataset_stays_as_it_is(disk: Path) -> None:
    store, index = LocalDirectory(disk / "store"), MemoryStore()
    dataset = open_dataset(store, index, "d", create=True)
    with DatasetWriter(dataset) as writer:
        writer.put(b"f", b"before")
    before = list(dataset.log.since(0))
    request = PackRequest([tree(disk, "one"), tree(disk, "two")], jobs=2)
    with pytest.raises(BadSources, match="would both be f in the dataset"):
        pack("d", request, lambda: store, lambda: index, PackProgress())
    assert list(dataset.log.since(0)) == before
