"""The sources of `dlcmd put`: what is refused before anything is read."""

import os
from pathlib import Path

import pytest

from tests.dieselfs.cli.conftest import Dlcmd


@pytest.fixture
def source(tmp_path: Path) -> Path:
    (tmp_path / "a/cat").mkdir(parents=True)
    (tmp_path / "b/cat").mkdir(parents=True)
    for path in ("a/cat/1.jpg", "b/cat/2.jpg", "a/x", "b/x"):
        (tmp_path / path).write_bytes(path.encode())
    return tmp_path


@pytest.mark.parametrize(
    ("sources", "said"),
    [
        (["", "a"], "is empty"),
        (["a/cat", "b/../a/cat"], "b/../a/cat is named twice"),
        (["a/", "a/."], "a/. is named twice"),
        (["a/x", "a/x"], "a/x is named twice"),
        (["a/x/"], "a/x/ is a file: leave out the slash"),
    ],
)
def test_sources_that_would_be_put_twice_are_refused(
    dlcmd: Dlcmd, source: Path, sources: list[str], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(source)
    done = dlcmd("put", "-j", "1", *sources, "pets")
    assert (done.code, said in done.err) == (2, True), done.err
    assert dlcmd("stat", "pets").code == 3


def test_two_files_of_one_path_are_refused(dlcmd: Dlcmd, source: Path) -> None:
    done = dlcmd("put", "-j", "1", source / "a/x", source / "b/x", "pets")
    assert (done.code, "would both be x in the dataset" in done.err) == (1, True), done.err
    assert dlcmd("stat", "pets").code == 3


def test_directories_of_one_target_are_put_together(dlcmd: Dlcmd, source: Path) -> None:
    done = dlcmd("put", "-j", "1", source / "a/cat", source / "b/cat", "pets")
    assert done.code == 0
    assert dlcmd("ls", "pets:cat").lines == ["1.jpg", "2.jpg"]


@pytest.mark.parametrize(
    ("names", "options", "said"),
    [
        (b"a/x\0b/x\0", [], "add -0"),
        (None, ["-0"], "--null is about the names"),
    ],
)
def test_names_that_end_with_nul_need_the_option_and_a_list(
    dlcmd: Dlcmd, source: Path, names: bytes | None, options: list[str], said: str
) -> None:
    if names is not None:
        (source / "list").write_bytes(names)
        options = [*options, "--files-from", str(source / "list")]
    done = dlcmd("put", "-j", "1", *options, source, "pets")
    assert (done.code, said in done.err) == (2, True), done.err


def test_a_name_that_is_listed_twice_is_put_once(dlcmd: Dlcmd, source: Path) -> None:
    (source / "list").write_bytes(b"a/x\n./a/x\nb/x\n")
    done = dlcmd("--json", "put", "-j", "1", "--files-from", source / "list", source, "pets")
    assert [record["files"] for record in done.records] == [2]


@pytest.mark.parametrize(
    "arguments",
    [
        ["get", "pets", ""],
        ["mount", "pets", ""],
        ["umount", ""],
        ["stats", ""],
        ["mount", "pets", "m", "--snapshot", ""],
        ["recover", "pets", "--to", ""],
        ["alloc", "job", "add", "j", "", "--speed", "1MB/s"],
    ],
)
def test_an_empty_argument_means_nothing_else(
    dlcmd: Dlcmd, tmp_path: Path, arguments: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = dlcmd(*arguments)
    assert (done.code, "is empty" in done.err) == (2, True), done.err
    assert os.listdir(tmp_path) == []
