"""snapshot tag, untag, diff, rm, prune and gc as commands: what they print, their exit codes, and
that a tag works wherever an id does."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from chunkstore import tags
from chunkstore.chunk_id import ChunkIdGenerator
from chunkstore.leases import Lease, new_lease_id, write_lease
from chunkstore.object_keys import chunk_key, commit_key, snapshot_key, tag_key
from dieselfs.assembly import open_index, open_store
from dieselfs.client import Client
from tests.dieselfs.cli.conftest import Dlcmd


@pytest.fixture
def versions(dlcmd: Dlcmd, url: str, pets: Client) -> list[str]:
    """Ids of two snapshots of `pets`: without and with `new.txt`, and with another `readme.txt`."""
    ids = [dlcmd("snapshot", "create", "pets", "--json").records[0]["id"]]
    put(url, "pets", {"new.txt": b"new", "readme.txt": b"other"})
    return [*ids, dlcmd("snapshot", "create", "pets", "--json").records[0]["id"]]


def put(url: str, name: str, files: dict[str, bytes]) -> None:
    """In this process: those that `dlcmd put` starts have a memory of their own."""
    with Client.connect(
        name,
        store=open_store(url),
        index=open_index(url),
        create=True,
        snapshot_folder=Path("not used"),
    ) as client:
        for path, data in files.items():
            client.put(data, path, mode=0o644, mtime_ns=1)


def orphan(url: str, age_days: float) -> str:
    ids = ChunkIdGenerator(lambda: time.time() - age_days * 86_400)
    key = chunk_key("pets", ids.next())
    open_store(url).create(key, [bytes(1000)])
    return key


def test_a_tag_works_wherever_an_id_does(dlcmd: Dlcmd, versions: list[str]) -> None:
    assert dlcmd("snapshot", "tag", "pets@2", "v1").code == 0
    assert dlcmd("snapshot", "tag", "pets", "v2", "--json").records == [
        {"dataset": "pets", "tag": "v2", "id": versions[1]}
    ]
    assert dlcmd("ls", "pets@v1").lines == dlcmd("ls", "pets@2").lines
    assert "new.txt" not in dlcmd("ls", "pets@v1").lines
    assert dlcmd("cat", "dl://pets@v1/readme.txt").out == b"hello\n"
    assert dlcmd("cat", "pets@v2:readme.txt").out == b"other"
    assert dlcmd("stat", "pets@v2:new.txt").code == 0
    assert dlcmd("du", "pets@v1", "-s").code == 0
    for command in ("show", "pull", "verify"):
        assert dlcmd("snapshot", command, "pets@v1").code == 0
    assert dlcmd("snapshot", "show", "pets@v1", "--json").records[0]["id"] == versions[0]
    assert dlcmd("shuffle", "-0", "pets@v1").code == 0
    result = dlcmd("ls", "pets@v3")
    assert (result.code, "no snapshot or tag 'v3'" in result.err) == (4, True)


def test_tags_are_listed_moved_and_removed(dlcmd: Dlcmd, url: str, versions: list[str]) -> None:
    assert dlcmd("snapshot", "tag", "pets@2", "v1").code == 0
    assert dlcmd("snapshot", "tag", "pets@v1", "first").code == 0
    listed = dlcmd("snapshot", "ls", "pets", "--json").records
    assert [(r["id"], r["tags"]) for r in listed] == [
        (versions[0], ["first", "v1"]),
        (versions[1], []),
    ]
    assert dlcmd("snapshot", "ls", "pets").lines[1].endswith("first, v1")
    assert dlcmd("snapshot", "tag", f"pets@{versions[1]}", "v1").code == 0
    assert [r["tags"] for r in dlcmd("snapshot", "ls", "pets", "--json").records] == [
        ["first"],
        ["v1"],
    ]
    tags.tag(open_store(url), "pets", "lost", f"2-{'ab' * 16}")
    assert "lost, but gone" in dlcmd("snapshot", "ls", "pets").err
    assert dlcmd("snapshot", "untag", "pets", "v1").code == 0
    assert dlcmd("snapshot", "untag", "pets", "v1").code == 4
    assert dlcmd("snapshot", "tag", "pets", "12").code == 2
    assert dlcmd("snapshot", "tag", "pets@nope", "v1").code == 4
    assert dlcmd("snapshot", "tag", "cats", "v1").code == 3


def test_a_damaged_tag_is_integrity_and_blocks(dlcmd: Dlcmd, url: str, versions: list[str]) -> None:
    open_store(url).create(tag_key("pets", "v1", 1), [b"?"])
    result = dlcmd("ls", "pets@v1")
    assert (result.code, "dlcmd snapshot untag" in result.err) == (7, True)
    result = dlcmd("snapshot", "ls", "pets")
    assert (result.code, "v1 can't be read" in result.err) == (0, True)
    assert dlcmd("snapshot", "prune", "pets", "--keep-last", "1", "--yes").code == 1
    assert dlcmd("snapshot", "rm", "pets@2", "--yes").code == 1
    result = dlcmd("gc", "pets")
    assert (result.code, "snapshot untag pets v1" in result.out.decode()) == (7, True)
    assert dlcmd("snapshot", "untag", "pets", "v1").code == 0
    assert dlcmd("gc", "pets").code == 0


def test_diff(dlcmd: Dlcmd, versions: list[str], snapshots: Path) -> None:
    result = dlcmd("snapshot", "diff", "pets@2", "pets")
    assert (result.code, result.lines) == (0, ["A new.txt", "M readme.txt"])
    backwards = dlcmd("snapshot", "diff", "pets", snapshots / f"pets-{versions[0]}.snapshot")
    assert backwards.lines == ["D new.txt", "M readme.txt"]
    [added, changed] = dlcmd("snapshot", "diff", "pets@2", "pets", "--json").records
    assert (added["change"], added["path"], added["kind"], added["before"]) == (
        "added",
        "new.txt",
        "file",
        None,
    )
    assert (changed["before"]["size"], changed["after"]["size"]) == (6, 5)
    assert changed["before"]["mode"] == "0640"
    totals = dlcmd("snapshot", "diff", "pets@2", "pets", "--stat")
    assert totals.lines[1].split() == ["added", "1", "0", "3"]
    assert "2 differences" in totals.err
    [record] = dlcmd("snapshot", "diff", "pets@2", "pets", "--stat", "--json").records
    assert record["changed"] == {"files": 1, "directories": 0, "bytes": 5}
    assert dlcmd("snapshot", "diff", "pets@2", "pets@2").out == b""


def test_diff_of_different_datasets(dlcmd: Dlcmd, url: str, versions: list[str]) -> None:
    put(url, "cats", {"x": b"x"})
    assert dlcmd("snapshot", "create", "cats").code == 0
    assert dlcmd("snapshot", "diff", "pets", "cats").code == 2


def test_rm(dlcmd: Dlcmd, url: str, pets: Client, versions: list[str]) -> None:
    assert dlcmd("snapshot", "rm", "pets@2").code == 2  # nobody to ask
    assert dlcmd("snapshot", "rm", "pets", "--yes").code == 2
    assert dlcmd("snapshot", "tag", "pets@2", "v1").code == 0
    result = dlcmd("snapshot", "rm", "pets@v1", "--yes")
    assert (result.code, "snapshot untag pets v1" in result.err) == (1, True)
    assert dlcmd("snapshot", "untag", "pets", "v1").code == 0
    lease = Lease(new_lease_id(), 1, pets.dataset.ref.id, (2,), "node-1", 7, time.time_ns())
    write_lease(open_store(url), "pets", lease)
    result = dlcmd("snapshot", "rm", "pets@2", "--yes")
    assert (result.code, "running mount" in result.err) == (1, True)
    assert dlcmd("snapshot", "rm", "pets@2", "--yes", "--force").lines == [versions[0]]
    assert [r["id"] for r in dlcmd("snapshot", "ls", "pets", "--json").records] == [versions[1]]
    assert dlcmd("snapshot", "rm", "pets@2", "--yes").code == 4


def test_prune(dlcmd: Dlcmd, versions: list[str]) -> None:
    assert dlcmd("snapshot", "prune", "pets").code == 2
    planned = dlcmd("snapshot", "prune", "pets", "--keep-last", "1", "-n", "--json").records
    assert [(r["id"], r["action"]) for r in planned] == [
        (versions[0], "delete"),
        (versions[1], "keep"),
    ]
    assert "delete" in dlcmd("snapshot", "prune", "pets", "--keep-last", "1", "-n").lines[1]
    assert dlcmd("snapshot", "prune", "pets", "--keep-last", "1").code == 2  # nobody to ask
    kept = (
        ["--keep-within", "30d"],
        ["--keep-last", "2"],
        ["--keep-last", "1", "--keep-within", "1h"],
    )
    for rules in kept:
        assert dlcmd("snapshot", "prune", "pets", *rules, "--yes").code == 0
    assert len(dlcmd("snapshot", "ls", "pets", "--json").records) == 2
    result = dlcmd("snapshot", "prune", "pets", "--keep-within", "0", "--yes")
    assert (result.code, result.lines) == (0, [versions[0]])
    assert [r["id"] for r in dlcmd("snapshot", "ls", "pets", "--json").records] == [versions[1]]


def test_a_prune_that_was_killed_is_finished_without_a_terminal(
    dlcmd: Dlcmd, url: str, versions: list[str]
) -> None:
    """It deletes the object in the store first, then the file on this machine."""
    open_store(url).delete(snapshot_key("pets", versions[0]))
    again = dlcmd("snapshot", "prune", "pets", "--keep-last", "1")
    assert (again.code, "add --yes" in again.err) == (2, True)
    for _ in range(2):
        assert dlcmd("snapshot", "prune", "pets", "--keep-last", "1", "--yes").code == 0
    assert [r["id"] for r in dlcmd("snapshot", "ls", "pets", "--json").records] == [versions[1]]


class TestGc:
    def test_clean(self, dlcmd: Dlcmd, pets: Client) -> None:
        result = dlcmd("gc", "pets")
        assert (result.code, result.out, "no garbage found" in result.err) == (0, b"", True)

    def test_found_listed_and_deleted(self, dlcmd: Dlcmd, url: str, pets: Client) -> None:
        old, young = orphan(url, 9), orphan(url, 1)
        result = dlcmd("gc", "pets")
        assert result.code == 10
        assert [line.split()[:4] for line in result.lines[1:]] == [
            ["uncommitted", "chunk", "1", "1000"],
            ["uncommitted", "chunk", "1", "1000"],
        ]
        assert old in dlcmd("gc", "pets", "-v").out.decode()
        for changes_nothing in ([], ["-n"], ["--delete", "-n"]):
            assert dlcmd("gc", "pets", *changes_nothing).code == 10
        assert dlcmd("gc", "pets", "--delete").code == 2  # nobody to ask
        *records, totals = dlcmd("gc", "pets", "--json").records
        assert (totals["garbage"], totals["garbage_bytes"], totals["waiting"]) == (1, 1000, 1)
        assert {r["key"]: r["kept"] for r in records} == {
            old: None,
            young: "younger than the grace period",
        }
        result = dlcmd("gc", "pets", "--delete", "--yes")
        assert (result.code, "deleted 1 object, 1000 B" in result.err) == (9, True)
        store = open_store(url)
        assert {info.key for info in store.list("datasets/pets/chunks/")} >= {young}
        assert old not in {info.key for info in store.list("datasets/pets/chunks/")}
        assert dlcmd("gc", "pets", "--delete", "--yes").code == 0

    def test_a_clean_dataset_has_a_record_too(self, dlcmd: Dlcmd, pets: Client) -> None:
        clean = dlcmd("gc", "pets", "--json")
        nothing = {"garbage": 0, "garbage_bytes": 0, "waiting": 0, "waiting_bytes": 0}
        assert (clean.code, clean.records) == (0, [{**nothing, "complete": True}])

    def test_all_datasets(self, dlcmd: Dlcmd, url: str, pets: Client) -> None:
        put(url, "cats", {"x": b"x"})
        orphan(url, 9)
        result = dlcmd("gc", "--all", "--delete", "--yes", "--json")
        assert (result.code, result.records[-1]) == (9, {"deleted": 1, "bytes": 1000})
        assert dlcmd("gc", "--all").code == 0

    def test_usage(self, dlcmd: Dlcmd, pets: Client) -> None:
        assert dlcmd("gc").code == 2
        assert dlcmd("gc", "pets", "--all").code == 2
        assert dlcmd("gc", "pets", "--grace", "soon").code == 2
        assert dlcmd("gc", "cats").code == 3

    def test_what_it_refuses_to_judge_is_not_nothing(
        self, dlcmd: Dlcmd, pets: Client, url: str
    ) -> None:
        open_store(url).delete(commit_key("pets", 2))
        result = dlcmd("gc", "pets", "--delete", "--yes")
        assert (result.code, "nothing was deleted" in result.err) == (7, True)
        assert "no garbage found" not in result.err

    def test_a_short_grace_period_is_asked_about(
        self, dlcmd: Dlcmd, url: str, pets: Client
    ) -> None:
        orphan(url, 0.1)
        result = dlcmd("gc", "pets", "--grace", "1h", "--delete")
        assert (result.code, "no put or purge may be running" in result.err) == (2, True)

    def test_an_index_that_knows_more_than_the_store(
        self, dlcmd: Dlcmd, url: str, pets: Client
    ) -> None:
        orphan(url, 9)
        store = open_store(url)
        newest = max(info.key for info in store.list("datasets/pets/commits/"))
        store.delete(newest)
        result = dlcmd("gc", "pets", "--delete", "--yes")
        assert (result.code, "dlcmd recover pets" in result.err) == (7, True)

    def test_local_files_only_when_told(self, dlcmd: Dlcmd, pets: Client, snapshots: Path) -> None:
        assert dlcmd("snapshot", "create", "pets").code == 0
        half = snapshots / ".incomplete-x"
        half.write_bytes(b"half")
        os.utime(half, (1, 1))
        assert dlcmd("gc", "pets").code == 0
        assert dlcmd("gc", "pets", "--local", "--delete", "--yes").code == 9
        assert len(list(snapshots.iterdir())) == 1

    def test_local_files_of_a_dataset_that_is_gone(
        self, dlcmd: Dlcmd, pets: Client, snapshots: Path
    ) -> None:
        """Another machine has removed the dataset."""
        [made] = dlcmd("snapshot", "create", "pets", "--json").records
        kept = Path(made["file"]).read_bytes()
        assert dlcmd("dataset", "rm", "pets", "-y").code == 0
        assert dlcmd("gc", "pets", "--local").code == 3
        Path(made["file"]).write_bytes(kept)
        os.utime(made["file"], (1, 1))
        assert dlcmd("gc", "pets").code == 3
        [found, totals] = dlcmd("gc", "pets", "--local", "--json").records
        assert found["reason"] == "the store has no dataset of this name"
        assert (found["key"], totals["garbage"]) == (made["file"], 1)
        assert dlcmd("gc", "pets", "--local", "--delete", "--yes").code == 9
        assert list(snapshots.iterdir()) == []
