"""`dlcmd fsck`: what it prints, what it asks, and the exit codes that scripts tell clean, repaired
and damaged by."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from chunkstore.stores.object_store import ObjectStore
from dieselfs.assembly import open_index, open_store
from dieselfs.cli.rendering.exit_codes import ExitCode
from dieselfs.client import Client
from metadata.dataset_state import indexed_dataset
from tests.dieselfs.cli.conftest import FILES, Dlcmd

pytestmark = pytest.mark.usefixtures("pets")


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def store(url: str) -> ObjectStore:
    return open_store(url)


def chunks(store: ObjectStore) -> list[str]:
    return sorted(info.key for info in store.list("datasets/pets/chunks/"))


@contextmanager
def lost(store: ObjectStore, key: str) -> Iterator[None]:
    data = store.get(key)
    store.delete(key)
    yield
    store.create(key, [data])


def test_clean(dlcmd: Dlcmd) -> None:
    result = dlcmd("fsck", "pets")
    assert (result.code, len(result.lines)) == (ExitCode.OK, 1)
    assert result.lines[0].startswith("pets: clean")
    [summary] = dlcmd("fsck", "--json", "pets").records
    assert (summary["verdict"], summary["findings"], summary["files_hit"]) == ("clean", 0, 0)


def test_damaged(dlcmd: Dlcmd, store: ObjectStore) -> None:
    [key] = chunks(store)
    with lost(store, key):
        result = dlcmd("fsck", "pets")
        assert result.code == ExitCode.INTEGRITY
        assert result.lines[0].startswith(f"chunk-missing {key}: the object is not in the store")
        assert "restore" in result.lines[0]
        assert len(result.lines) == 2 + len(FILES) + 1  # an odd name has a line break
        finding, summary = dlcmd("fsck", "--json", "pets").records
        assert (finding["finding"], len(finding["files"])) == ("chunk-missing", len(FILES))
        assert "odd/caf\udce9 \x1b[31m\n.txt" in finding["files"]
        assert (summary["verdict"], summary["files_hit"]) == ("damaged", len(FILES))
        assert dlcmd("fsck", "--repair", "-y", "pets").code == ExitCode.INTEGRITY
    assert dlcmd("fsck", "pets").code == ExitCode.OK


def test_the_list_of_files_is_bounded_unless_asked_for(
    dlcmd: Dlcmd, url: str, store: ObjectStore, snapshots: Path
) -> None:
    before = chunks(store)
    index = open_index(url)
    with Client.connect("pets", store=store, index=index, snapshot_folder=snapshots) as client:
        for number in range(30):
            client.put(b"%d" % number, f"many/{number:02}")
    [key] = set(chunks(store)) - set(before)
    with lost(store, key):
        result = dlcmd("fsck", "pets")
        assert "  and 20 more (--files lists all)" in result.lines
        assert len(dlcmd("fsck", "--files", "pets").lines) == 32
        assert len(dlcmd("fsck", "--json", "pets").records[0]["files"]) == 30


def test_repairable_dry_run_and_repaired(
    dlcmd: Dlcmd, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DIESELFS_INDEX", f"{url}-another")
    assert dlcmd("fsck", "pets").code == ExitCode.FOUND
    result = dlcmd("fsck", "--repair", "-n", "pets")
    assert (result.code, result.lines[1]) == (
        ExitCode.FOUND,
        "would: repair the index from the store (index)",
    )
    assert indexed_dataset(open_index(f"{url}-another"), "pets") is None  # nothing was changed
    result = dlcmd("fsck", "--repair", "pets")
    assert (result.code, result.lines[1]) == (
        ExitCode.REPAIRED,
        "done: repair the index from the store (index)",
    )
    assert dlcmd("fsck", "--repair", "pets").code == ExitCode.OK
    assert len(dlcmd("ls", "-r", "pets").lines) > len(FILES)


def test_deleting_a_snapshot_wants_a_confirmation(dlcmd: Dlcmd, store: ObjectStore) -> None:
    [made] = dlcmd("snapshot", "create", "pets", "--json").records
    Path(made["file"]).unlink()
    dlcmd("rm", "-y", "pets:readme.txt")
    key = f"datasets/pets/snapshots/{made['id']}"
    data = store.get(key)
    store.delete(key)
    store.create(key, [data[:-1]])
    assert dlcmd("fsck", "pets").code == ExitCode.INTEGRITY
    result = dlcmd("fsck", "--repair", "pets")
    assert (result.code, "--yes" in result.err) == (ExitCode.USAGE, True)
    assert store.stat(key)
    *_, done, summary = dlcmd("fsck", "--repair", "--yes", "--json", "pets").records
    assert done == {"done": "delete it from the store", "object": key}
    assert summary["verdict"] == "repaired"
    assert dlcmd("fsck", "pets").code == ExitCode.OK


def test_with_scrub_the_content_is_read_too(dlcmd: Dlcmd, store: ObjectStore) -> None:
    [key] = chunks(store)
    data = bytearray(store.get(key))
    data[-1] ^= 1
    store.delete(key)
    store.create(key, [bytes(data)])
    assert dlcmd("fsck", "pets").code == ExitCode.OK
    result = dlcmd("fsck", "--scrub", "pets")
    assert result.code == ExitCode.INTEGRITY
    assert [line.split(" ")[0] for line in result.lines if not line.startswith(" ")][:2] == [
        "pets:",
        "chunk-payload",
    ]


def test_no_such_dataset(dlcmd: Dlcmd) -> None:
    assert dlcmd("fsck", "cows").code == ExitCode.DIRECTORY_NOT_FOUND
    assert dlcmd("fsck", "pets:cat").code == ExitCode.USAGE
