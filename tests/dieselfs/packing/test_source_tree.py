"""The walk of a source: everything once, in small runs, in an order that can be had again."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from chunkstore.errors import BadSource
from dieselfs.packing.source_tree import (
    RUN_FILES,
    Oddities,
    Run,
    SourceTree,
    check_source,
    listed_runs,
    mixed,
)
from dieselfs.path_filter import PathFilter, Rule


@pytest.fixture
def top(tmp_path: Path) -> Path:
    top = tmp_path / "top"
    for folder in ("a/b", "c", "empty"):
        (top / folder).mkdir(parents=True)
    for number in range(2 * RUN_FILES + 1):
        (top / f"a/{number}").touch()
    (top / "a/b/x").touch()
    (top / "c/y").touch()
    return top


def walk(top: Path, target: bytes = b"", **options: object) -> tuple[list[Run], Oddities]:
    oddities = Oddities()
    tree = SourceTree(os.fsencode(top), target, **options)  # type: ignore[arg-type]
    return list(tree.runs(oddities)), oddities


def names(runs: list[Run]) -> list[bytes]:
    return [
        (run.directory + b"/" if run.directory else b"") + name
        for run in runs
        for name in run.names
    ]


def test_every_file_once_and_every_directory_with_its_attributes_once(top: Path) -> None:
    runs, oddities = walk(top)
    assert sorted(names(runs)) == sorted(
        [b"a/b/x", b"c/y", *(b"a/%d" % number for number in range(2 * RUN_FILES + 1))]
    )
    assert max(len(run.names) for run in runs) == RUN_FILES
    described = [run.directory for run in runs if run.attributes is not None]
    assert sorted(described) == [b"", b"a", b"a/b", b"c", b"empty"]
    assert (oddities.special, oddities.unreadable) == ([], [])


def test_a_directory_comes_after_the_one_above_it(top: Path) -> None:
    seen: set[bytes] = set()
    for run in walk(top, b"in/side")[0]:
        if run.attributes is not None:
            parent = run.directory.rpartition(b"/")[0]
            assert run.directory == b"in/side" or parent in seen
            seen.add(run.directory)
    assert b"in/side/a/b" in seen


def test_by_path_is_sorted(top: Path) -> None:
    runs = walk(top, by_path=True)[0]
    in_a = [name for name in names(runs) if name.startswith(b"a/") and name.count(b"/") == 1]
    assert in_a == sorted(in_a)
    assert [run.directory for run in runs if run.attributes] == [b"", b"a", b"a/b", b"c", b"empty"]


def test_a_single_file_may_be_renamed(top: Path) -> None:
    [run] = walk(top / "c/y", b"d/z")[0]
    assert (run.directory, run.names, run.renamed) == (b"d", [b"y"], b"z")
    [run] = walk(top / "c/y", b"y")[0]
    assert (run.directory, run.renamed) == (b"", None)


def test_filters_are_relative_to_the_source(top: Path) -> None:
    filters = PathFilter([Rule(False, "/a/b"), Rule(True, "/a/1*"), Rule(False, "/a/*")])
    for target in (b"", b"far/away"):
        runs = walk(top, target, filters=filters)[0]
        below = [name.removeprefix(target + b"/") for name in names(runs)]
        assert b"c/y" in below
        assert b"a/b/x" not in below
        assert {name[:3] for name in below if name.startswith(b"a/")} == {b"a/1"}


def test_loops_and_dead_ends(top: Path) -> None:
    (top / "a/b/up").symlink_to("..")
    (top / "self").symlink_to("self")
    (top / "nowhere").symlink_to("none")
    oddities = walk(top)[1]
    assert len(oddities.unreadable) == 3
    assert any("leads back" in reason for reason in oddities.unreadable)
    assert any("self" in reason for reason in oddities.unreadable)


def test_a_directory_reached_twice_is_no_loop(top: Path) -> None:
    (top / "again").symlink_to("a")
    (top / "c/again").symlink_to("../a/b")
    runs, oddities = walk(top)
    assert oddities.unreadable == []
    assert {b"again/b/x", b"c/again/x"} <= set(names(runs))


def test_listed_files() -> None:
    runs = list(listed_runs(b"/base", b"to", [b"x", b"d/1", b"d/2", b"y", b"d/3"], run_files=1))
    assert [(run.disk_directory, run.directory, run.names) for run in runs] == [
        (b"/base", b"to", [b"x"]),
        (b"/base/d", b"to/d", [b"1"]),
        (b"/base/d", b"to/d", [b"2"]),
        (b"/base", b"to", [b"y"]),
        (b"/base/d", b"to/d", [b"3"]),
    ]


@pytest.mark.parametrize("count", [0, 1, 100, 5000])
def test_mixing_keeps_every_run_and_depends_on_the_seed_alone(count: int) -> None:
    runs = [Run(b"/d", b"", [b"%d" % number]) for number in range(count)]
    assert sorted(names(list(mixed(runs, 1)))) == sorted(names(runs))
    assert list(mixed(runs, 1)) == list(mixed(runs, 1))
    if count > 2:
        assert list(mixed(runs, 1)) != list(mixed(runs, 2))
        assert list(mixed(runs, 1)) != runs


def test_what_cannot_be_a_source(top: Path) -> None:
    check_source(os.fsencode(top))
    check_source(os.fsencode(top / "c/y"))
    os.mkfifo(top / "pipe")
    for path in (top / "none", top / "pipe", top / "c/y/below", Path("/dev/null")):
        with pytest.raises(BadSource) as failure:
            check_source(os.fsencode(path))
        assert str(path) in str(failure.value)
