"""get: what comes out is what went in, and nothing is written outside the target."""

import os
import stat
from pathlib import Path

import pytest

from dieselfs.assembly import open_store
from dieselfs.client import Client
from tests.dieselfs.cli.conftest import FILES, TIME_NS, Dlcmd


def content(folder: Path) -> dict[bytes, bytes]:
    top = os.fsencode(folder)
    return {
        os.path.relpath(os.path.join(parent, name), top): Path(
            os.fsdecode(os.path.join(parent, name))
        ).read_bytes()
        for parent, _, names in os.walk(top)
        for name in names
    }


def encoded(files: dict[str | bytes, bytes]) -> dict[bytes, bytes]:
    return {os.fsencode(path): data for path, data in files.items()}


pytestmark = pytest.mark.usefixtures("pets")


@pytest.mark.parametrize("jobs", ["1", "4"])
def test_a_whole_dataset(dlcmd: Dlcmd, tmp_path: Path, jobs: str) -> None:
    assert dlcmd("get", "pets", tmp_path / "out", "-j", jobs).code == 0
    assert content(tmp_path / "out") == encoded(FILES)
    status = (tmp_path / "out/cat/1.jpg").stat()
    assert (stat.S_IMODE(status.st_mode), status.st_mtime_ns) == (0o640, TIME_NS)


def test_directories_get_their_modes_and_times(dlcmd: Dlcmd, pets: Client, tmp_path: Path) -> None:
    dlcmd("get", "pets", tmp_path / "out")
    for name in ("", "dog", "dog/big"):
        there, here = pets.stat(name), (tmp_path / "out" / name).stat()
        assert (stat.S_IMODE(there.mode), there.mtime_ns) == (
            stat.S_IMODE(here.st_mode),
            here.st_mtime_ns,
        )


@pytest.mark.parametrize(
    ("address", "local", "made"),
    [
        ("pets:cat", "out", "out/cat/1.jpg"),
        ("pets:cat/", "out", "out/1.jpg"),
        ("pets:cat/1.jpg", "there", "there/1.jpg"),
        ("pets:cat/1.jpg", "there/other.jpg", "there/other.jpg"),
        ("pets:cat", ".", "cat/1.jpg"),
    ],
)
def test_where_things_go(
    dlcmd: Dlcmd,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    address: str,
    local: str,
    made: str,
) -> None:
    (tmp_path / "there").mkdir()
    monkeypatch.chdir(tmp_path)
    assert dlcmd("get", address, local).code == 0
    assert Path(made).read_bytes() == FILES["cat/1.jpg"]


def test_a_second_get_skips_what_is_there(dlcmd: Dlcmd, tmp_path: Path) -> None:
    dlcmd("get", "pets", tmp_path / "out")
    (tmp_path / "out/readme.txt").write_bytes(b"changed")
    [record] = dlcmd("get", "pets", tmp_path / "out", "--json").records
    assert (record["files"], record["skipped"], record["failed"]) == (1, 5, 0)
    assert content(tmp_path / "out") == encoded(FILES)
    [record] = dlcmd("get", "pets", tmp_path / "out", "--json", "-I").records
    assert record["files"] == 6


def test_filters_keep_the_directories_above_what_they_take(
    dlcmd: Dlcmd, pets: Client, tmp_path: Path
) -> None:
    assert dlcmd("get", "pets", tmp_path / "out", "--include", "*.jpg").code == 0
    assert set(content(tmp_path / "out")) == {b"cat/1.jpg", b"cat/2.jpg", b"dog/big/3.jpg"}
    assert (tmp_path / "out/dog/big").stat().st_mtime_ns == pets.stat("dog/big").mtime_ns


def test_a_dry_run_prints_the_mapping(dlcmd: Dlcmd, tmp_path: Path) -> None:
    lines = dlcmd("get", "-n", "pets:cat", tmp_path / "out").lines
    assert lines[1] == f"dl://pets/cat/1.jpg -> {tmp_path}/out/cat/1.jpg"
    assert not (tmp_path / "out").exists()


def test_a_link_in_the_way_is_not_followed(dlcmd: Dlcmd, tmp_path: Path) -> None:
    outside, out = tmp_path / "outside", tmp_path / "out"
    outside.mkdir()
    out.mkdir()
    (out / "cat").symlink_to(outside)
    result = dlcmd("get", "pets", out)
    assert (result.code, "symbolic link" in result.err) == (1, True)
    assert list(outside.iterdir()) == []


def test_a_link_in_the_place_of_a_file_is_replaced(dlcmd: Dlcmd, tmp_path: Path) -> None:
    outside, out = tmp_path / "outside", tmp_path / "out"
    outside.write_bytes(b"mine")
    out.mkdir()
    (out / "readme.txt").symlink_to(outside)
    assert dlcmd("get", "pets", out).code == 0
    assert outside.read_bytes() == b"mine"
    assert not (out / "readme.txt").is_symlink()


def put_links(pets: Client) -> None:
    for path, target in (
        ("latest", "cat"),
        ("cat/up", "../readme.txt"),
        ("dog/big/root", "../.."),
        ("nowhere", "no/such"),
    ):
        pets.put_link(target, path, mtime_ns=TIME_NS)
    pets.flush()


def test_links_are_made_again(dlcmd: Dlcmd, pets: Client, tmp_path: Path) -> None:
    put_links(pets)
    out = tmp_path / "out"
    assert dlcmd("get", "pets", out).code == 0
    assert os.readlink(out / "latest") == "cat"
    assert os.readlink(out / "cat/up") == "../readme.txt"
    assert os.readlink(out / "nowhere") == "no/such"
    assert (out / "latest/up").read_bytes() == FILES["readme.txt"]
    assert os.path.realpath(out / "dog/big/root") == str(out)
    assert (out / "latest").lstat().st_mtime_ns == TIME_NS
    [record] = dlcmd("get", "pets", out, "--json").records
    assert (record["files"], record["skipped"], record["outside"]) == (0, len(FILES) + 4, 0)
    (out / "latest").unlink()
    (out / "latest").write_bytes(b"cat")
    os.utime(out / "latest", ns=(TIME_NS, TIME_NS))
    assert dlcmd("get", "pets:latest", out).code == 0  # alone, as a link
    assert os.readlink(out / "latest") == "cat"


def test_a_link_that_would_lead_out_of_the_folder_is_left_out(
    dlcmd: Dlcmd, pets: Client, tmp_path: Path
) -> None:
    """It stays in the dataset, and out of the part that is copied."""
    put_links(pets)
    out = tmp_path / "out"
    result = dlcmd("get", "pets:cat/", out)
    assert (result.code, "cat/up" in result.err) == (6, True)
    assert {path.name for path in out.iterdir()} == {"1.jpg", "2.jpg"}
    assert dlcmd("get", "pets:cat", out).code == 0  # into out/cat: the link leads to out
    assert os.readlink(out / "cat/up") == "../readme.txt"
    assert dlcmd("get", "pets:cat/up", out).code == 6


@pytest.mark.parametrize(
    ("path", "target"),
    [
        (b"a", b"/etc"),
        (b"a", b".."),
        (b"a", b"x/../../y"),
        (b"d/a", b"../.."),
        (b"d/a", b"b/../../../x"),
        (b"a", b"n\0ul"),
    ],
)
def test_a_hostile_link_is_not_made(
    dlcmd: Dlcmd, pets: Client, tmp_path: Path, path: bytes, target: bytes
) -> None:
    """A chunk or a snapshot may hold any target: no writer of ours would put it."""
    writer = pets._changes().writer()
    writer._packer.add_link(path, target, TIME_NS)
    writer.put(b"d/other", b"harmless")
    pets.flush()
    out = tmp_path / "out"
    result = dlcmd("get", "pets", out)
    assert (result.code, "was not made" in result.err) == (6, True)
    assert not os.path.lexists(os.fsencode(out) + b"/" + path)
    assert (out / "d/other").read_bytes() == b"harmless"


def test_nothing_is_written_through_a_link_of_the_dataset(
    dlcmd: Dlcmd, pets: Client, tmp_path: Path
) -> None:
    """A link that an earlier copy made, in the place of what is a directory now."""
    pets.put_link("cat", "later")
    pets.flush()
    out = tmp_path / "out"
    assert dlcmd("get", "pets", out).code == 0
    pets.delete("later")
    pets.flush()
    pets.put(b"new", "later/1.jpg")
    pets.flush()
    result = dlcmd("get", "pets", out)
    assert (result.code, "symbolic link" in result.err) == (1, True)
    assert (out / "cat/1.jpg").read_bytes() == FILES["cat/1.jpg"]


def test_a_target_that_is_a_link_is_the_users_word(dlcmd: Dlcmd, tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "out").symlink_to("disk")
    assert dlcmd("get", "pets", tmp_path / "out").code == 0
    assert content(tmp_path / "disk") == encoded(FILES)


def test_set_id_bits_stay_behind(dlcmd: Dlcmd, pets: Client, tmp_path: Path) -> None:
    pets.put(b"#!/bin/sh\n", "tool", mode=0o6755)
    pets.flush()
    dlcmd("get", "pets:tool", tmp_path)
    assert stat.S_IMODE((tmp_path / "tool").stat().st_mode) == 0o755


def test_a_damaged_file_fails_alone(dlcmd: Dlcmd, pets: Client, url: str, tmp_path: Path) -> None:
    pets.put(b"sound", "sound.txt")  # in a chunk of its own
    pets.flush()
    store, entry = open_store(url), pets.stat("readme.txt")
    [key] = [
        info.key for info in store.list("datasets/pets/") if info.key.endswith(str(entry.chunk))
    ]
    damaged = store.get(key).replace(b"hello\n", b"hallo\n")
    store.delete(key)
    store.create(key, [damaged])
    result = dlcmd("get", "pets", tmp_path / "out")
    assert (result.code, result.err.count("\n")) == (6, 2)
    assert "readme.txt: " in result.err
    assert not (tmp_path / "out/readme.txt").exists()
    assert (tmp_path / "out/sound.txt").read_bytes() == b"sound"
    assert [name for name in os.listdir(tmp_path / "out") if name.startswith(".")] == []


@pytest.mark.parametrize(
    ("address", "local", "code"),
    [
        ("pets:nothing", "out", 4),
        ("cows", "out", 3),
        ("pets", "missing/out", 1),
        ("pets:readme.txt", "missing/x", 1),
        ("pets:readme.txt/", "out", 2),
        ("pets", "file", 1),
    ],
)
def test_what_cannot_be_got(
    dlcmd: Dlcmd, tmp_path: Path, address: str, local: str, code: int
) -> None:
    (tmp_path / "file").touch()
    result = dlcmd("get", address, tmp_path / local)
    assert (result.code, result.err.count("\n")) == (code, 1)
    assert not (tmp_path / "out").exists()


def test_a_dash_is_standard_output(
    dlcmd: Dlcmd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    written = dlcmd("get", "pets:dog/big/3.jpg", "-")
    assert (written.code, written.out, written.err) == (0, FILES["dog/big/3.jpg"], "")
    refused = dlcmd("get", "pets:dog", "-")
    assert (refused.code, refused.out) == (2, b"")
    assert "is a directory" in refused.err
    assert dlcmd("get", "-n", "pets:cat/1.jpg", "-").code == 2
    assert not (tmp_path / "-").exists()
    assert dlcmd("get", "pets:cat/1.jpg", "./-").code == 0
    assert (tmp_path / "-").read_bytes() == FILES["cat/1.jpg"]
