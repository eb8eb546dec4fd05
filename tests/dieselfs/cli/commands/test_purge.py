"""dlcmd purge: what it says, and its exit codes."""

from __future__ import annotations

from pathlib import Path

import pytest

from chunkstore.chunk_id import ChunkId
from chunkstore.object_keys import chunk_key
from dieselfs.assembly import open_store
from dieselfs.client import Client
from tests.dieselfs.cli.conftest import FILES, Dlcmd

pytestmark = pytest.mark.usefixtures("pets")


def contents(dlcmd: Dlcmd) -> dict[str, bytes]:
    names = [name for name in FILES if isinstance(name, str)]
    found = {name: dlcmd("cat", f"pets:{name}") for name in names}
    return {name: result.out for name, result in found.items() if not result.code}


def test_nothing_to_do(dlcmd: Dlcmd) -> None:
    result = dlcmd("purge", "pets")
    assert (result.code, "nothing to do" in result.err) == (0, True)
    assert dlcmd("purge", "-n", "pets").code == 0


def test_holes_wait_and_then_go(dlcmd: Dlcmd) -> None:
    dlcmd("rm", "-y", "pets:dog/big/3.jpg", "pets:readme.txt")
    before = contents(dlcmd)
    [purged] = dlcmd("purge", "pets", "--json").records
    assert purged["bytes_after"] > purged["bytes_before"] > 300_000
    assert purged["waiting"]["grace"]["chunks"] == purged["chunks_retired"] > 0
    again = dlcmd("purge", "pets")
    assert again.code == 0
    assert any("grace period of 7 d" in line for line in again.lines)
    freed = dlcmd("purge", "pets", "--grace", "0")
    assert freed.code == 0
    assert contents(dlcmd) == before
    [done] = dlcmd("purge", "pets", "--grace", "0", "--json").records
    assert done["bytes_after"] < 20_000
    assert done["waiting"] == {
        "grace": {"bytes": 0, "chunks": 0},
        "pinned": {"bytes": 0, "chunks": 0},
    }
    assert done["damaged"] == []


def test_a_dry_run_lists_what_would_be_done_and_does_nothing(dlcmd: Dlcmd, url: str) -> None:
    dlcmd("rm", "-y", "pets:dog/big/3.jpg")
    objects = list(open_store(url).list("datasets/"))
    result = dlcmd("purge", "-n", "pets", "--json")
    assert result.code == 0
    assert list(open_store(url).list("datasets/")) == objects
    *chunks, total = result.records
    assert [chunk["action"] for chunk in chunks] == ["rewrite"]
    assert total["free_bytes"] == sum(chunk["hole_bytes"] for chunk in chunks) > 300_000
    assert (total["rewrite"], total["delete"]) == (1, 0)
    assert "would rewrite chunk" in dlcmd("purge", "--dry-run", "pets").lines[0]
    dlcmd("purge", "pets")
    assert dlcmd("purge", "-n", "pets").code == 0  # what waits is not due
    assert "would delete chunk" in dlcmd("purge", "-n", "--grace", "0", "pets").lines[0]


def test_a_published_snapshot_keeps_its_chunks(dlcmd: Dlcmd) -> None:
    assert dlcmd("snapshot", "create", "pets").code == 0
    [snapshot] = dlcmd("snapshot", "ls", "pets", "--json").records[:1]
    dlcmd("rm", "-y", "pets:cat/2.jpg")
    result = dlcmd("purge", "--grace", "0", "pets")
    assert result.code == 0
    assert any("a published snapshot, a tag or a mount needs them" in x for x in result.lines)
    assert dlcmd("cat", f"pets@{snapshot['id']}:cat/2.jpg").out == FILES["cat/2.jpg"]


def test_damage_is_told(dlcmd: Dlcmd, url: str, pets: Client) -> None:
    store = open_store(url)
    row = pets.dataset.namespace.stat(b"cat/1.jpg").row
    chunk = ChunkId(bytes(row["chunk"]))
    record = pets.dataset.namespace.chunk(chunk.value)
    dlcmd("rm", "-y", "pets:readme.txt")
    key = chunk_key("pets", chunk)
    data = bytearray(store.get(key))
    data[record.head_bytes + int(row["offset"])] ^= 1
    store.delete(key)
    store.create(key, [bytes(data)])
    result = dlcmd("purge", "--leave", "0%", "pets")
    assert result.code == 7
    assert any(line.startswith(f"skipped: chunk {chunk}") for line in result.lines)
    assert "dlcmd fsck pets" in result.err


@pytest.mark.parametrize("none", ["0", "0%"])
def test_no_holes_may_stay(dlcmd: Dlcmd, none: str) -> None:
    assert dlcmd("purge", "-n", "--leave", none, "pets").code == 0


@pytest.mark.parametrize(
    "arguments",
    [["--leave", "5"], ["--leave", "101%"], ["--grace", "soon"], ["--chunk-size", "1"]],
)
def test_options_that_make_no_sense(dlcmd: Dlcmd, arguments: list[str]) -> None:
    assert dlcmd("purge", *arguments, "pets").code == 2


def test_no_such_dataset(dlcmd: Dlcmd, tmp_path: Path) -> None:
    assert dlcmd("purge", "dogs").code == 3
