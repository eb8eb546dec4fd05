"""Options that would do nothing are refused, and advice can be typed as it is printed."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest

from dieselfs.client import Client
from metadata.snapshot import Snapshot
from tests.dieselfs.cli.conftest import Dlcmd

pytestmark = pytest.mark.usefixtures("pets")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["ls", "--count-only"], "for the files of a dataset"),
        (["ls", "--limit", "0"], "for the files of a dataset"),
        (["ls", "--exclude", "x"], "for the files of a dataset"),
        (["ls", "pets", "--ssd", "/x"], "add --cached"),
        (["get", "pets:readme.txt", "-", "--exclude", "*"], "for folders"),
        (["get", "pets:readme.txt", "-", "-I"], "for folders"),
        (["stats", "m", "--once", "--interval", "1"], "--once prints once"),
        (["mount", "pets", "m", "--front", "fuse", "--blob-cache", "direct"], "is for EROFS"),
        (["mount", "pets", "m", "-o", "front=fuse,blob_cache=direct"], "is for EROFS"),
        (["mount", "pets", "m", "--upgrade", "--refresh"], "goes with no snapshot"),
        (["mount", "pets@2", "m", "--upgrade"], "goes with no snapshot"),
        (["alloc", "job", "add", "--table", "x.csv", "--gpus", "2"], "--table has all jobs"),
        (["alloc", "job", "add", "--table", "x.csv", "--irregular"], "--table has all jobs"),
        (["alloc", "run", "--remote-io", "1MB/s", "--namespace", "x"], "add --kubernetes"),
        (["advise", "--power", "--plot", "x.svg"], "different questions"),
        (["advise", "x.trace", "--io", "1GB/s"], "different questions"),
        (["completion"], "Choose from: bash, zsh, fish: see"),
    ],
)
def test_options_that_would_do_nothing_are_refused(
    dlcmd: Dlcmd, arguments: list[str], said: str
) -> None:
    done = dlcmd(*arguments)
    assert (done.code, said in done.err, done.err.count("\n")) == (2, True, 1), done.err


def test_an_upgrade_is_of_the_dataset_that_is_named(
    dlcmd: Dlcmd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = SimpleNamespace(dataset="cows", mountpoint=tmp_path / "my mnt")
    monkeypatch.setattr("dieselfs.cli.commands.mount._running", lambda _: running)
    done = dlcmd("mount", "--upgrade", "pets", tmp_path)
    assert done.code == 8
    assert "cows is mounted at" in done.err
    assert f"dlcmd umount '{tmp_path}/my mnt'" in done.err


def test_folders_with_spaces_are_quoted_in_advice(dlcmd: Dlcmd, tmp_path: Path) -> None:
    done = dlcmd("get", "pets:readme.txt", tmp_path / "a b/c")
    assert f"mkdir -p '{tmp_path}/a b'" in done.err


def test_a_file_goes_into_folders_alone(dlcmd: Dlcmd, tmp_path: Path) -> None:
    """A slash at the end names a folder, which `mkdir -p` cannot make in the place of a file."""
    missing = dlcmd("get", "pets:readme.txt", f"{tmp_path}/out/")
    assert (missing.code, f"mkdir -p {tmp_path}/out" in missing.err) == (1, True)
    (tmp_path / "file").write_bytes(b"")
    refused = dlcmd("get", "pets:readme.txt", tmp_path / "file/x")
    assert (refused.code, "file: not a folder: choose another one" in refused.err) == (1, True)
    assert list(tmp_path.glob("out*")) == []


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["put", ".", "./out"], "this is not an address: write dl://"),
        (["put", ".", "pets:../x"], "illegal path '../x'"),
        (["config", "get", "memory", "--dataset", "pets"], "explain memory --dataset pets`"),
        (["cache", "ttl", "pets", "0"], "dlcmd cache evict pets"),
    ],
)
def test_advice_names_what_can_be_typed(dlcmd: Dlcmd, arguments: list[str], said: str) -> None:
    assert said in dlcmd(*arguments).err


def test_the_root_of_a_mount_is_a_directory(pets: Client, tmp_path: Path) -> None:
    from dieselfs.cli.commands.why import _file_inode
    from dieselfs.errors import UsageError

    with (
        Snapshot.open(pets.save_meta()) as snapshot,
        pytest.raises(UsageError, match="is a directory"),
    ):
        _file_inode(snapshot, tmp_path, tmp_path)


def test_the_progress_of_gc_counts_each_commit_once(
    dlcmd: Dlcmd, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown: list[tuple[str, int]] = []

    @contextmanager
    def progress(action: str, *, what: str, **_: object) -> Iterator[SimpleNamespace]:
        yield SimpleNamespace(
            advance=lambda count, size: shown.append((what, count)), expect=lambda *_: None
        )

    for number in (1, 2):
        assert dlcmd("rm", "-y", f"pets:cat/{number}.jpg").code == 0
    monkeypatch.setattr("dieselfs.cli.command_context.progress_of", progress)
    dlcmd("gc", "pets")
    newest = dlcmd("dataset", "info", "pets", "--json").records[0]["generation"]
    assert shown
    assert {what for what, _ in shown} == {"commits"}
    assert sum(count for _, count in shown) == newest
