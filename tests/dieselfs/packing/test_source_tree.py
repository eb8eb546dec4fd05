"""The walk of a source: everything once, in small runs, in an order that can be had again."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from dieselfs.dataset.path_filter import PathFilter, Rule
from dieselfs.packing.source_tree import (
    BATCH_FILES,
    EntryBatch,
    SkippedEntries,
    SourceTree,
    listed_batches,
    mixed,
    refusal_of,
)


@pytest.fixture
def top(tmp_path: Path) -> Path:
    top = tmp_path / "top"
    for folder in ("a/b", "c", "empty"):
        (top / folder).mkdir(parents=True)
    for number in range(2 * BATCH_FILES + 1):
        (top / f"a/{number}").touch()
    (top / "a/b/x").touch()
    (top / "c/y").touch()
    return top


def walk(
    top: Path, target: bytes = b"", **options: object
) -> tuple[list[EntryBatch], SkippedEntries]:
    skipped = SkippedEntries()
    tree = SourceTree(os.fsencode(top), target, **options)  # type: ignore[arg-type]
    return list(tree.batches(skipped)), skipped


def names(batches: list[EntryBatch]) -> list[bytes]:
    return [
        (batch.directory + b"/" if batch.directory else b"") + name
        for batch in batches
        for name in batch.names
    ]


def test_every_file_once_and_every_directory_with_its_attributes_once(top: Path) -> None:
    batches, skipped = walk(top)
    assert sorted(names(batches)) == sorted(
        [b"a/b/x", b"c/y", *(b"a/%d" % number for number in range(2 * BATCH_FILES + 1))]
    )
    assert max(len(batch.names) for batch in batches) == BATCH_FILES
    described = [batch.directory for batch in batches if batch.attributes is not None]
    assert sorted(described) == [b"", b"a", b"a/b", b"c", b"empty"]
    assert (skipped.special, skipped.unreadable) == ([], [])


def test_a_directory_comes_after_the_one_above_it(top: Path) -> None:
    seen: set[bytes] = set()
    for batch in walk(top, b"in/side")[0]:
        if batch.attributes is not None:
            parent = batch.directory.rpartition(b"/")[0]
            assert batch.directory == b"in/side" or parent in seen
            seen.add(batch.directory)
    assert b"in/side/a/b" in seen


def test_by_path_is_sorted(top: Path) -> None:
    batches = walk(top, by_path=True)[0]
    in_a = [name for name in names(batches) if name.startswith(b"a/") and name.count(b"/") == 1]
    assert in_a == sorted(in_a)
    assert [batch.directory for batch in batches if batch.attributes] == [
        b"",
        b"a",
        b"a/b",
        b"c",
        b"empty",
    ]


def test_a_single_file_may_be_renamed(top: Path) -> None:
    [batch] = walk(top / "c/y", b"d/z")[0]
    assert (batch.directory, batch.names, batch.renamed) == (b"d", [b"y"], b"z")
    [batch] = walk(top / "c/y", b"y")[0]
    assert (batch.directory, batch.renamed) == (b"", None)


def test_filters_are_relative_to_the_source(top: Path) -> None:
    filters = PathFilter([Rule(False, "/a/b"), Rule(True, "/a/1*"), Rule(False, "/a/*")])
    for target in (b"", b"far/away"):
        batches = walk(top, target, filters=filters)[0]
        below = [name.removeprefix(target + b"/") for name in names(batches)]
        assert b"c/y" in below
        assert b"a/b/x" not in below
        assert {name[:3] for name in below if name.startswith(b"a/")} == {b"a/1"}


@pytest.mark.parametrize("links", ["follow", "keep", "skip", "refuse"])
@pytest.mark.parametrize(
    "rules",
    [
        [Rule(False, "dangling"), Rule(False, "pipe"), Rule(False, "circle"), Rule(False, "up")],
        [Rule(True, "*.jpg")],
        [Rule(True, "x"), Rule(False, "*")],
    ],
)
def test_a_filter_comes_before_the_look(top: Path, rules: list[Rule], links: str) -> None:
    (top / "a/dangling").symlink_to("nowhere")
    (top / "a/circle").symlink_to("circle")
    os.mkfifo(top / "c/pipe")
    if rules[0].pattern == "dangling":
        (top / "a/b/up").symlink_to("..")
    skipped = walk(top, b"in", filters=PathFilter(rules), links=links)[1]
    assert (skipped.special, skipped.unreadable) == ([], [])


def test_kept_links_are_names_of_their_directory(top: Path) -> None:
    (top / "a/b/up").symlink_to("../..")
    (top / "a/out").symlink_to("../../x")
    (top / "self").symlink_to("self")
    batches, skipped = walk(top, b"in/side", links="keep")
    links = {
        (batch.directory, name, batch.depth)
        for batch in batches
        for name in batch.names
        if name in batch.links
    }
    assert links == {(b"in/side/a/b", b"up", 2), (b"in/side", b"self", 0)}
    assert all(batch.links <= {*batch.names} for batch in batches)
    assert [reason.partition(":")[0] for reason in skipped.outside] == [str(top / "a/out")]
    assert (skipped.links, skipped.unreadable) == ([], [])


def test_a_file_that_is_named_is_filtered_by_its_name(top: Path) -> None:
    (top / "dangling").symlink_to("nowhere")
    (top / "link").symlink_to("a")
    os.mkfifo(top / "pipe")
    for name in ("dangling", "pipe", "c/y", "link"):
        rule = Rule(False, os.path.basename(name))
        filters = PathFilter([rule])
        batches, skipped = walk(top / name, b"z", filters=filters, links="refuse")
        assert (batches, skipped.unreadable) == ([], [])
        tree = SourceTree(os.fsencode(top / name), b"z", filters, links="refuse")
        assert tree.refusal() is None


def test_loops_and_dead_ends(top: Path) -> None:
    (top / "a/b/up").symlink_to("..")
    (top / "self").symlink_to("self")
    (top / "nowhere").symlink_to("none")
    skipped = walk(top)[1]
    assert len(skipped.unreadable) == 3
    assert any("leads back" in reason for reason in skipped.unreadable)
    assert any("self" in reason for reason in skipped.unreadable)


def test_a_directory_reached_twice_is_no_loop(top: Path) -> None:
    (top / "again").symlink_to("a")
    (top / "c/again").symlink_to("../a/b")
    batches, skipped = walk(top)
    assert skipped.unreadable == []
    assert {b"again/b/x", b"c/again/x"} <= set(names(batches))


def test_listed_files() -> None:
    batches = list(
        listed_batches(b"/base", b"to", [b"x", b"d/1", b"d/2", b"y", b"d/3"], batch_files=1)
    )
    assert [(batch.disk_directory, batch.directory, batch.names) for batch in batches] == [
        (b"/base", b"to", [b"x"]),
        (b"/base/d", b"to/d", [b"1"]),
        (b"/base/d", b"to/d", [b"2"]),
        (b"/base", b"to", [b"y"]),
        (b"/base/d", b"to/d", [b"3"]),
    ]


@pytest.mark.parametrize("count", [0, 1, 100, 5000])
def test_mixing_keeps_every_run_and_depends_on_the_seed_alone(count: int) -> None:
    batches = [EntryBatch(b"/d", b"", [b"%d" % number]) for number in range(count)]
    assert sorted(names(list(mixed(batches, 1)))) == sorted(names(batches))
    assert list(mixed(batches, 1)) == list(mixed(batches, 1))
    if count > 2:
        assert list(mixed(batches, 1)) != list(mixed(batches, 2))
        assert list(mixed(batches, 1)) != batches


def test_what_cannot_be_a_source(top: Path) -> None:
    assert refusal_of(os.fsencode(top)) is None
    assert refusal_of(os.fsencode(top / "c/y")) is None
    os.mkfifo(top / "pipe")
    for path in (top / "none", top / "pipe", top / "c/y/below", Path("/dev/null")):
        assert str(path) in (refusal_of(os.fsencode(path)) or "")
