"""`dlcmd scrub`: what it prints, its options and exit codes, and that Ctrl-C costs nothing but
time."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from chunkstore.stores.object_store import ObjectStore
from dieselfs.assembly import open_store
from dieselfs.cli.rendering.exit_codes import ExitCode
from tests.dieselfs.cli.conftest import FILES, Dlcmd
from tests.eventually import PATIENCE_S, eventually


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache/dieselfs/scrub"


@pytest.fixture
def store(url: str) -> ObjectStore:
    return open_store(url)


@pytest.mark.usefixtures("pets")
def test_clean(dlcmd: Dlcmd) -> None:
    result = dlcmd("scrub", "pets")
    assert (result.code, len(result.lines)) == (ExitCode.OK, 1)
    assert result.lines[0].startswith("pets: clean (1 chunk, 6 files, ")
    [record] = dlcmd("scrub", "--json", "pets").records
    assert (record["verdict"], record["chunks"], record["files"]) == ("clean", 1, len(FILES))
    assert record["bytes"] > sum(map(len, FILES.values()))


@pytest.mark.usefixtures("pets")
def test_damaged(dlcmd: Dlcmd, store: ObjectStore) -> None:
    [info] = store.list("datasets/pets/chunks/")
    data = bytearray(store.get(info.key))
    at = data.index(b"C" * 5000)
    data[at + 4000] ^= 1
    store.delete(info.key)
    store.create(info.key, [bytes(data)])
    result = dlcmd("scrub", "pets")
    assert (result.code, result.lines[1]) == (ExitCode.INTEGRITY, "  cat/2.jpg")
    finding, summary = dlcmd("scrub", "--json", "pets").records
    assert (finding["finding"], finding["files"]) == ("chunk-payload", ["cat/2.jpg"])
    assert (summary["verdict"], summary["files_hit"]) == ("damaged", 1)


@pytest.mark.usefixtures("pets")
def test_a_sample_says_its_seed(dlcmd: Dlcmd) -> None:
    [record] = dlcmd("scrub", "--sample", "5%", "--json", "pets").records
    assert (record["chunks"], record["seed"] is not None) == (1, True)
    assert "sample of seed 7" in dlcmd("scrub", "--sample", "12.5%", "--seed", "7", "pets").lines[0]


@pytest.mark.usefixtures("pets")
@pytest.mark.parametrize(
    "options",
    [
        ["--sample", "5"],
        ["--sample", "0%"],
        ["--sample", "101%"],
        ["--rate", "fast"],
        ["--rate", "0"],
        ["--seed", "7"],
    ],
)
def test_wrong_options(dlcmd: Dlcmd, options: list[str]) -> None:
    assert dlcmd("scrub", *options, "pets").code == ExitCode.USAGE


@pytest.mark.parametrize(
    "options",
    [
        ["--cached", "pets"],
        ["--cached", "--rate", "1G"],
        ["--cached", "--sample", "5%"],
        ["--cached", "--seed", "0"],
        ["--cached", "--restart"],
        ["--cached", "--files"],
        ["--cached", "-j", "2"],
        ["--task", "none"],
        ["--task", "none", "pets"],
    ],
    ids=" ".join,
)
def test_what_does_not_go_with_cached(dlcmd: Dlcmd, options: list[str]) -> None:
    result = dlcmd("scrub", *options)
    assert result.code == ExitCode.USAGE
    assert "--cached verifies what node memory holds, whole and of all datasets" in result.err
    assert "write `dlcmd scrub --cached`, or `dlcmd scrub --cached --task NAME`" in result.err


def test_no_dataset(dlcmd: Dlcmd) -> None:
    result = dlcmd("scrub")
    assert result.code == ExitCode.USAGE
    assert "no dataset is named" in result.err


def test_cached_without_tasks(
    dlcmd: Dlcmd, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("DIESELFS_MEMORY_FOLDER", str(tmp_path))
    result = dlcmd("scrub", "--cached")
    assert (result.code, result.lines) == (ExitCode.OK, [])
    result = dlcmd("scrub", "--cached", "--task", "none")
    assert result.code == ExitCode.FAILURE
    assert "no task none on this node" in result.err
    assert "`dlcmd task ls` lists them" in result.err


@pytest.mark.usefixtures("pets")
@pytest.mark.parametrize("rate", ["200MiB/s", "1G", "100000000"])
def test_rates(dlcmd: Dlcmd, rate: str) -> None:
    assert dlcmd("scrub", "--rate", rate, "pets").code == ExitCode.OK


def test_no_such_dataset(dlcmd: Dlcmd) -> None:
    assert dlcmd("scrub", "cows").code == ExitCode.DIRECTORY_NOT_FOUND


def test_ctrl_c_and_the_same_command_again(dlcmd: Dlcmd, dataset: Path, cache: Path) -> None:
    for number in range(100):  # two minutes of a scrub that this test may be late to interrupt
        (dataset / f"cat/more{number}.jpg").write_bytes(os.urandom(5000))
    assert dlcmd("put", "--chunk-size", "4KiB", "-j", "1", f"{dataset}/", "pets").code == 0
    process = subprocess.Popen(
        [sys.executable, "-m", "dieselfs.cli", "scrub", "pets", "--rate", "4KiB", "-j", "1"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    try:
        eventually(
            lambda: list(cache.glob("*.json")) or process.poll() is not None, "saved progress"
        )
        assert process.poll() is None
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=PATIENCE_S)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == ExitCode.INTERRUPTED
    [file] = cache.glob("*.json")
    kept = json.loads(file.read_bytes())
    [record] = dlcmd("scrub", "pets", "--json").records
    assert 0 < kept["chunks"] < record["chunks"] == record["chunks_there"]
    assert (record["resumed"], record["files"]) == (True, 101)
    assert not list(cache.glob("*.json"))
