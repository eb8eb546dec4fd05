"""ls, cat, stat, du, shuffle: what they print, for people and for programs."""

import uuid
from pathlib import Path

import pytest
import xxhash

from chunkstore.object_keys import commit_key
from chunkstore.removal import mark_removed
from dieselfs.assembly import open_index, open_store
from dieselfs.cli.rendering.entries import iso_time
from dieselfs.client import Client
from tests.dieselfs.cli.conftest import FILES, TIME_NS, Dlcmd

pytestmark = pytest.mark.usefixtures("pets")


def test_ls_shows_directories_first(dlcmd: Dlcmd) -> None:
    assert dlcmd("ls", "pets").lines == ["cat/", "dog/", "odd/", "readme.txt"]
    assert dlcmd("ls", "dl://pets/cat/").lines == ["1.jpg", "2.jpg"]
    assert dlcmd("ls", "pets:cat/1.jpg").lines == ["1.jpg"]


def test_ls_long(dlcmd: Dlcmd) -> None:
    [line, _] = dlcmd("ls", "-l", "pets:cat").lines
    assert line.split() == ["-rw-r-----", "1000", "2020-01-01", "01:02:03", "1.jpg"]
    assert "4.9 KiB" in dlcmd("ls", "-lH", "pets:cat").lines[1]


def test_ls_recursive_prints_paths_that_can_be_used_as_they_are(dlcmd: Dlcmd) -> None:
    lines = dlcmd("ls", "-r", "pets:dog").lines
    assert lines == ["dog/big/", "dog/notes.xml", "dog/big/3.jpg"]


def test_names_of_any_bytes_reach_a_pipe_as_they_are(dlcmd: Dlcmd) -> None:
    assert dlcmd("ls", "pets:odd").out == b"caf\xe9 \x1b[31m\n.txt\n"


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (["--include", "*.jpg"], ["cat/1.jpg", "cat/2.jpg", "dog/big/3.jpg"]),
        (
            ["--exclude", "odd", "--exclude", "cat", "--exclude", "/dog/big"],
            ["dog/", "dog/notes.xml", "readme.txt"],
        ),
        (["--include", "2.*", "--exclude", "*"], ["cat/2.jpg"]),
        (["--exclude", "*", "--include", "2.*"], []),
        (["--sort", "size", "--limit", "2", "--include", "*.*"], ["dog/big/3.jpg", "cat/2.jpg"]),
    ],
)
def test_filters_count_in_the_order_given(
    dlcmd: Dlcmd, flags: list[str], expected: list[str]
) -> None:
    assert sorted(dlcmd("ls", "-r", "pets", *flags).lines) == sorted(expected)


def test_ls_counts(dlcmd: Dlcmd) -> None:
    total = sum(map(len, FILES.values()))
    assert dlcmd("ls", "-r", "--count-only", "pets").lines == [f"6 files, 4 directories, {total}"]
    counts = {"files": 6, "directories": 4, "bytes": total}
    assert dlcmd("ls", "-r", "--count-only", "--json", "pets").records == [counts]


def test_ls_json(dlcmd: Dlcmd) -> None:
    [record, _] = dlcmd("ls", "pets:cat", "--json").records
    assert record | {"chunk": None, "offset": None, "xxh3": None} == {
        "path": "cat/1.jpg",
        "kind": "file",
        "size": 1000,
        "mode": "0640",
        "mtime": "2020-01-01T01:02:03.123456789Z",
        "mtime_ns": TIME_NS,
        "chunk": None,
        "offset": None,
        "xxh3": None,
        "generation": 2,
    }


def test_ls_without_an_address_lists_datasets(dlcmd: Dlcmd) -> None:
    heading, row = dlcmd("ls").lines
    assert (heading.split()[0], row.split()[:2]) == ("NAME", ["pets", "6"])
    assert dlcmd("ls", "--json").records[0]["name"] == "pets"


def put_elsewhere(url: str, name: str, files: int) -> int:
    """Put a dataset of the store that another index than the test's knows; return its
    generation."""
    index = open_index(f"{url}-elsewhere")
    with Client.connect(
        name, store=open_store(url), index=index, create=True, snapshot_folder=Path("/nowhere")
    ) as client:
        for number in range(files):
            client.put(b"x", f"{number}")
        client.flush()
        return client.dataset.namespace.state().generation


def test_ls_shows_what_the_store_has(
    dlcmd: Dlcmd, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_elsewhere(url, "cows", 3)
    assert [line.split()[:2] for line in dlcmd("ls").lines[1:]] == [["cows", "3"], ["pets", "6"]]
    put_elsewhere(url, "cows", 4)  # one more file, which this index has not seen
    assert [record["files"] for record in dlcmd("ls", "--json").records] == [4, 6]
    monkeypatch.setenv("DIESELFS_STORE", f"{url}-another")
    result = dlcmd("ls")
    assert (result.code, result.lines) == (0, [])  # the index knows datasets of another store


def test_ls_does_not_count_what_takes_long(
    dlcmd: Dlcmd, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(20):
        generation = put_elsewhere(url, "cows", number + 1)
    result = dlcmd("ls")
    assert [line.split()[1] for line in result.lines[1:]] == ["-", "6"]
    assert "dlcmd dataset info cows" in result.err
    [record, _] = dlcmd("ls", "--json").records
    assert (record["files"], record["generation"]) == (None, generation)
    monkeypatch.setenv("DIESELFS_INDEX", f"{url}-elsewhere")
    assert dlcmd("snapshot", "create", "cows").code == 0
    monkeypatch.setenv("DIESELFS_INDEX", url)
    [row, _] = dlcmd("ls").lines[1:]
    assert row.split()[1:5] == ["20", "20", "-", str(generation)]


def test_ls_of_datasets_names_the_damaged_one(dlcmd: Dlcmd, url: str) -> None:
    put_elsewhere(url, "cows", 1)
    store = open_store(url)
    store.delete(commit_key("cows", 1))
    store.create(commit_key("cows", 1), [b"damaged"])
    result = dlcmd("ls")
    assert (result.code, [line.split()[0] for line in result.lines[1:]]) == (6, ["pets"])
    assert "dlcmd fsck cows" in result.err


@pytest.mark.parametrize("fault", ["damaged", "down"])
def test_ls_of_datasets_needs_no_index(dlcmd: Dlcmd, tmp_path: Path, fault: str) -> None:
    (tmp_path / "data.mdb").write_bytes(b"damaged" * 4096)
    index = "redis://127.0.0.1:1/0" if fault == "down" else f"lmdb://{tmp_path}"
    result = dlcmd("ls", "--index", index)
    assert (result.code, [line.split()[:2] for line in result.lines[1:]]) == (6, [["pets", "6"]])
    assert (result.err.count("\n"), "dlcmd: index" in result.err) == (1, True)


def test_a_dataset_that_is_half_removed_is_not_listed(dlcmd: Dlcmd, pets: Client) -> None:
    mark_removed(pets.dataset.store, pets.dataset.log)
    assert dlcmd("ls").lines == []


def test_cat_writes_bytes_one_after_the_other(dlcmd: Dlcmd) -> None:
    result = dlcmd("cat", "pets:readme.txt", "pets:dog/big/3.jpg")
    assert result.out == FILES["readme.txt"] + FILES["dog/big/3.jpg"]
    assert result.err == ""


def test_cat_goes_on_after_a_failure(dlcmd: Dlcmd) -> None:
    result = dlcmd("cat", "pets:nothing", "pets:readme.txt")
    assert (result.code, result.out) == (6, b"hello\n")
    assert result.err.count("\n") == 1


def test_stat(dlcmd: Dlcmd, pets: Client) -> None:
    fields = dict(line.split(":", 1) for line in dlcmd("stat", "pets:cat/1.jpg").lines)
    assert fields["size"].strip() == "1000"
    assert fields["mode"].strip() == "-rw-r-----"
    [record] = dlcmd("info", "--json", "pets:cat/1.jpg").records
    assert record["xxh3"] == xxhash.xxh3_64_hexdigest(FILES["cat/1.jpg"])
    assert record["committed"] == iso_time(pets.dataset.log.read(record["generation"]).time_ns)
    assert fields["committed"].strip() == record["committed"]


def test_links_are_shown_as_links(dlcmd: Dlcmd, pets: Client) -> None:
    pets.put_link("cat/1.jpg", "best", mtime_ns=TIME_NS)
    pets.put_link("../cat", "dog/other", mtime_ns=TIME_NS)
    pets.flush()
    assert "best" in dlcmd("ls", "pets").lines
    [line] = [line for line in dlcmd("ls", "-l", "pets").lines if "best" in line]
    assert (line[:10], line[10:].split()[0]) == ("lrwxrwxrwx", "9")
    assert line.endswith("best -> cat/1.jpg")
    records = {
        record["path"]: record for record in dlcmd("ls", "-r", "-l", "--json", "pets").records
    }
    assert (records["dog/other"]["kind"], records["dog/other"]["target"]) == ("link", "../cat")
    assert "target" not in records["cat/1.jpg"]
    [record] = dlcmd("stat", "--json", "pets:best").records
    assert (record["kind"], record["target"], record["size"]) == ("link", "cat/1.jpg", 9)
    assert "target:" in " ".join(dlcmd("stat", "pets:best").lines)
    [counts] = dlcmd("ls", "--json", "--count-only", "-r", "pets").records
    assert counts["files"] == len(FILES) + 2
    result = dlcmd("cat", "pets:best")
    assert (result.code, result.out) == (8, b"")
    assert "symbolic link" in result.err
    assert dlcmd("shuffle", "-0", "pets").out.count(b"\0") == len(FILES)
    assert dlcmd("snapshot", "create", "pets").code == 0
    assert dlcmd("rm", "--yes", "pets:best").code == 0
    assert dlcmd("rm", "--yes", "-r", "pets:dog").code == 0
    found = [line for line in dlcmd("ls", "-r", "pets").lines if "best" in line or "dog" in line]
    assert found == []


def test_du_adds_up_below_each_directory(dlcmd: Dlcmd) -> None:
    rows = [line.split() for line in dlcmd("du", "pets").lines]
    assert rows == [
        ["6000", "cat"],
        ["300000", "dog/big"],
        ["300004", "dog"],
        ["3", "odd"],
        ["306013", "."],
    ]
    assert [line.split() for line in dlcmd("du", "-s", "pets").lines] == rows[-1:]
    assert dlcmd("du", "-d", "0", "--json", "pets:dog").records == [
        {"path": "dog", "bytes": 300004, "files": 2}
    ]


def test_shuffle_prints_every_file_once_and_the_same_twice(dlcmd: Dlcmd) -> None:
    first = dlcmd("shuffle", "pets", "--seed", "1", "-0").out
    names = [name.encode() if isinstance(name, str) else name for name in FILES]
    assert sorted(first.split(b"\0")[:-1]) == sorted(names)
    assert dlcmd("shuffle", "pets", "--seed", "1", "-0").out == first


def test_shuffle_takes_the_fresh_snapshot_and_needs_no_index_for_a_named_one(
    dlcmd: Dlcmd, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert dlcmd("snapshot", "create", "pets").code == 0
    monkeypatch.setattr("dieselfs.snapshots.lifecycle.build", None)
    first = dlcmd("shuffle", "pets", "-0")
    assert first.code == 0
    named = dlcmd("shuffle", "pets@2", "-0", "--index", "redis://127.0.0.1:1")
    assert (named.code, named.out) == (0, first.out)


def test_shuffle_refuses_names_with_line_breaks_in_lines(dlcmd: Dlcmd) -> None:
    result = dlcmd("shuffle", "pets")
    assert (result.code, result.out) == (2, b"")
    assert "line break" in result.err
    assert "-0" in result.err
    assert len(dlcmd("shuffle", "pets", "--json").records) == len(FILES)


@pytest.mark.parametrize(
    ("option", "value"),
    [("--seed", 2**64), ("--epoch", -1), ("--group", 2**31), ("--world", 2**31)],
)
def test_shuffle_numbers_out_of_range_are_wrong_usage(
    dlcmd: Dlcmd, option: str, value: int
) -> None:
    result = dlcmd("shuffle", "pets", "-0", option, str(value))
    assert (result.code, result.out) == (2, b"")
    assert option in result.err


def test_snapshot_ls_of_an_unknown_dataset(dlcmd: Dlcmd) -> None:
    assert dlcmd("snapshot", "ls", "petz").code == 3
    known = dlcmd("snapshot", "ls", "pets", "--json")
    assert (known.code, known.out) == (0, b"")


def test_dataset_ls_with_a_lost_index_lists_what_is_in_the_store(dlcmd: Dlcmd) -> None:
    known = dlcmd("dataset", "ls", "--json")
    lost = dlcmd("dataset", "ls", "--json", "--index", f"memory://{uuid.uuid4().hex}")
    assert (lost.code, lost.out) == (0, known.out)


def test_the_ranks_of_a_shuffle_share_the_files(dlcmd: Dlcmd) -> None:
    ranks = [
        dlcmd("shuffle", "pets", "-0", "--world", "2", "--rank", str(rank)).out for rank in (0, 1)
    ]
    assert sum(len(out.split(b"\0")) - 1 for out in ranks) == 6


def test_a_snapshot_in_an_address_shows_the_past(dlcmd: Dlcmd) -> None:
    assert dlcmd("snapshot", "create", "pets").code == 0
    assert dlcmd("rm", "-r", "-y", "pets:cat").code == 0
    assert dlcmd("ls", "pets:cat").code == 3
    assert dlcmd("ls", "pets@2:cat").lines == ["1.jpg", "2.jpg"]
    assert dlcmd("cat", "dl://pets@2/cat/1.jpg").out == FILES["cat/1.jpg"]
    assert dlcmd("ls", "pets@99").code == 4
