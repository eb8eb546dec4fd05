"""What a put publishes: for mounts without an index, beside a purge, and where it cannot."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from chunkstore.errors import StoreFull
from dieselfs.fuse.supervision.daemonize import default_log_file
from tests.dieselfs.cli.conftest import Dlcmd
from tests.eventually import eventually
from tests.mount.mounting import needs_fuse


def put(dlcmd: Dlcmd, source: Path, *more: str) -> dict[str, Any]:
    result = dlcmd("--json", "put", *more, f"{source}/", "pets", "-j", "1")
    assert result.code == 0, result.err
    return dict(result.records[0])


def published(dlcmd: Dlcmd) -> list[int]:
    found = dlcmd("--json", "snapshot", "ls", "pets").records
    return [record["generation"] for record in found if record["published"]]


def test_a_put_publishes_a_snapshot_and_says_so(dlcmd: Dlcmd, dataset: Path) -> None:
    assert published(dlcmd) == [2]
    again = put(dlcmd, dataset)
    assert (again["snapshot"][:2], again["snapshot_published"]) == ("2-", False)
    (dataset / "b").write_bytes(b"b")
    without = put(dlcmd, dataset, "--no-publish")
    assert (without["snapshot"], without["snapshot_error"]) == (None, None)
    assert published(dlcmd) == [2]
    (dataset / "c").write_bytes(b"c")
    result = dlcmd("put", f"{dataset}/", "pets", "-j", "1")
    assert "snapshot 4 published" in result.lines[-1]


def test_snapshots_of_puts_do_not_pile_up(dlcmd: Dlcmd, dataset: Path) -> None:
    assert dlcmd("snapshot", "create", "pets").code == 0  # a person wants generation 2
    for number in range(4):
        (dataset / f"{number}").write_bytes(b"x")
        done = put(dlcmd, dataset)
    assert published(dlcmd) == [2, 5, 6]
    assert [snapshot_id[:2] for snapshot_id in done["snapshots_deleted"]] == ["4-"]
    ids = [record["id"] for record in dlcmd("--json", "snapshot", "ls", "pets").records]
    assert dlcmd("snapshot", "rm", "-y", f"pets@{ids[-1]}").code == 0
    assert published(dlcmd) == [2, 5]


def test_a_snapshot_that_cannot_be_published_does_not_undo_the_put(
    dlcmd: Dlcmd, dataset: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise StoreFull("no space left")

    monkeypatch.setattr("dieselfs.snapshots.put_snapshots.publish_once", full)
    (dataset / "a").write_bytes(b"a")
    result = dlcmd("put", f"{dataset}/", "pets", "-j", "1")
    assert result.code == 0
    assert "no snapshot was published: no space left" in result.err
    assert "`dlcmd snapshot create pets`" in result.err
    assert dlcmd("cat", "pets:a").out == b"a"
    (dataset / "b").write_bytes(b"b")
    record = put(dlcmd, dataset)
    assert (record["files"], record["snapshot_error"]) == (1, "no space left")


def test_a_purge_replaces_the_snapshot_of_a_put_that_is_in_its_way(
    dlcmd: Dlcmd, dataset: Path
) -> None:
    (dataset / "large").write_bytes(bytes(300_000))
    put(dlcmd, dataset)
    assert dlcmd("rm", "-y", "pets:large").code == 0
    [purged] = dlcmd("--json", "purge", "--grace", "0", "pets").records
    assert (purged["waiting"]["pinned"]["chunks"], purged["bytes_deleted"] > 300_000) == (0, True)
    [newest] = published(dlcmd)
    assert newest == dlcmd("--json", "dataset", "info", "pets").records[0]["generation"]


def test_waiting_and_going_on_contradict_each_other(dlcmd: Dlcmd, tmp_path: Path) -> None:
    result = dlcmd("put", "--no-wait", "--anyway", tmp_path, "new")
    assert (result.code, "choose one" in result.err) == (2, True)


@needs_fuse
def test_a_mount_without_an_index_shows_what_was_put_and_says_when_it_is_older(
    dlcmd: Dlcmd,
    dataset: Path,
    mountpoint: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("DIESELFS_SNAPSHOTS", str(tmp_path / "another machine"))
    result = dlcmd("mount", "--no-index", "pets", mountpoint)
    assert (result.code, "but the store is at" in result.err) == (0, False)
    assert (mountpoint / "cat/1.jpg").read_bytes() == b"meow" * 100

    def freshness() -> dict[str, Any]:
        document = json.loads((mountpoint / ".dieselfs/stats.json").read_text())
        return {**document["freshness"], "checked_s_ago": None}

    fresh = {"generation": 2, "newest_generation": 2, "behind": 0, "checked_s_ago": None}
    eventually(lambda: freshness() == fresh, "the first look at the store")
    assert dlcmd("umount", mountpoint).code == 0

    monkeypatch.delenv("DIESELFS_SNAPSHOTS")
    (dataset / "new.jpg").write_bytes(b"new")
    put(dlcmd, dataset, "--no-publish")
    monkeypatch.setenv("DIESELFS_SNAPSHOTS", str(tmp_path / "another machine"))
    line = "shows generation 2 of pets, but the store is at 3, 1 commit later"
    result = dlcmd("mount", "--no-index", "pets", mountpoint)
    assert (result.code, result.err.count(line)) == (0, 1)
    eventually(lambda: freshness()["behind"] == 1, "the first look at the store")
    log = default_log_file(mountpoint)
    eventually(lambda: line in log.read_text(), "the warning, a moment later")
    assert log.read_text().count(line) == 1
    assert not (mountpoint / "new.jpg").exists()

    monkeypatch.delenv("DIESELFS_SNAPSHOTS")
    assert dlcmd("snapshot", "create", "pets").code == 0
    monkeypatch.setenv("DIESELFS_SNAPSHOTS", str(tmp_path / "another machine"))
    result = dlcmd("mount", "--refresh", "--no-index", "pets", mountpoint)
    assert (result.code, "but the store is at" in result.err) == (0, False)
    assert (mountpoint / "new.jpg").read_bytes() == b"new"
    assert dlcmd("umount", mountpoint).code == 0
