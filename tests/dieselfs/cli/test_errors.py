"""Every error is one line that says what to do, and an exit code that a script can rely on."""

import errno
import inspect
import json
import re
from pathlib import Path

import click
import pytest

import chunkstore.errors
import dieselfs.errors
import metadata.errors
from dieselfs.cli import dlcmd as dlcmd_group
from dieselfs.cli.rendering.exit_codes import ExitCode, explain
from dieselfs.cli.rendering.output import Output
from tests.dieselfs.cli.conftest import Dlcmd

OUR_ERRORS = [
    error
    for module in (chunkstore.errors, metadata.errors, dieselfs.errors)
    for _, error in inspect.getmembers(module, inspect.isclass)
    if issubclass(error, Exception) and error.__module__ == module.__name__
]
ROOTS = {"ChunkStoreError", "MetadataError", "DieselFSError"}


@pytest.mark.parametrize(
    "error", OUR_ERRORS, ids=lambda error: f"{error.__module__}.{error.__name__}"
)
def test_no_error_of_ours_counts_as_internal(error: type[Exception]) -> None:
    failure = explain(error("what happened"))
    assert failure.what == "what happened"
    assert failure.code not in (ExitCode.OK, ExitCode.INTERRUPTED)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (chunkstore.errors.Unavailable("x"), 5),
        (metadata.errors.IndexUnavailable("x"), 5),
        (metadata.errors.IndexDenied("x"), 1),
        (chunkstore.errors.Corrupt("x"), 7),
        (metadata.errors.SnapshotRefused("x"), 7),
        (metadata.errors.SnapshotStale("x"), 8),
        (metadata.errors.DatasetNotFound("x"), 3),
        (metadata.errors.PathNotFound("x"), 4),
        (dieselfs.errors.MountpointBusy("x"), 8),
        (dieselfs.errors.MountError("x"), 1),
        (dieselfs.errors.ConfigError("x"), 2),
        (dieselfs.errors.RegistryUnavailable("x"), 5),
        (dieselfs.errors.PartialFailure("x"), 6),
        (chunkstore.errors.InvalidPath("x"), 2),
        (OSError(errno.ENOSPC, "No space left on device", "/x"), 1),
        (KeyError("x"), 1),
    ],
)
def test_codes(error: Exception, code: int) -> None:
    assert explain(error).code == code


def test_a_message_that_says_what_to_do_gets_no_second_hint() -> None:
    assert str(explain(metadata.errors.SnapshotStale("old: use --refresh"))).count("--refresh") == 1
    assert explain(dieselfs.errors.MountError("busy", "wait")).hint == "wait"
    assert "--refresh" in explain(metadata.errors.SnapshotStale("old")).hint


def test_what_a_message_says_to_do_is_its_hint() -> None:
    stale = explain(metadata.errors.SnapshotStale("old: use --refresh"))
    assert (stale.what, stale.hint, str(stale)) == ("old", "use --refresh", "old: use --refresh")
    full = explain(chunkstore.errors.StoreFull("no space; free space, then run it again"))
    assert (full.what, full.hint) == ("no space", "free space, then run it again")
    where = explain(
        metadata.errors.IndexUnavailable("index redis://h: no answer: check the server")
    )
    assert (where.what, where.hint) == ("index redis://h: no answer", "check the server")


def test_an_error_is_one_line_without_secrets_or_control_characters() -> None:
    failure = explain(chunkstore.errors.Corrupt("a\nb \x1b[31m redis://u:pw@h \udce9"))
    assert str(failure).isprintable()
    assert failure.what == r"a b \x1b[31m redis://u:***@h \udce9"


def test_a_full_disk_says_what_to_do() -> None:
    failure = explain(OSError(errno.ENOSPC, "No space left on device", "/out/x"))
    assert (
        str(failure)
        == "/out/x: No space left on device: free space, then run the same command again"
    )


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["lss"], 2, "did you mean 'ls'"),
        (["dataset", "lst"], 2, "did you mean 'ls'"),
        (["ls", "dl:/cows"], 2, "did you mean dl://cows? The forms are dl://DATASET"),
        (["xyzzy"], 2, "see `dlcmd --help`"),
        (["ls", "--rekursive"], 2, "--recursive"),
        (["cat"], 2, "see `dlcmd cat --help`"),
        (["ls", "cows"], 3, "dataset ls"),
        (["ls", "cows/calves"], 2, "did you mean cows:calves"),
        (["ls", "cows", "--store", "/data"], 2, "file:///data"),
        (["ls", "cows", "--store", "file:///nothing/here"], 5, "store"),
        (["ls", "cows", "--index", "redis://127.0.0.1:1"], 5, "check"),
        (["ls", "cows", "--index", "sqlite:///x"], 2, "lmdb:///"),
        (["ls", "cows", "--profile", "none"], 2, "[profiles.none]"),
        (["ls", "cows", "--index", "redis://u:pw@h"], 2, "DIESELFS_INDEX"),
        (["ls", "cows", "--exclude", "[z-a]"], 2, "--exclude"),
        (["du", "cows"], 3, "dataset ls"),
        (["shuffle", "cows", "--rank", "2"], 2, "ranks count from 0"),
        (["shuffle", "cows:a"], 2, "write cows"),
        (["mount", "cows", "/nothing/here"], 1, "mkdir -p"),
        (["mount", "cows:a", "/"], 2, "mount cows"),
        (["mount", "cows", "/", "-o", "alow_other"], 2, "did you mean allow_other"),
        (["umount", "/nothing/here"], 1, "dlcmd mounts"),
        (["completion", "tcsh"], 2, "bash"),
    ],
)
def test_bad_input(dlcmd: Dlcmd, arguments: list[str], code: int, said: str) -> None:
    result = dlcmd(*arguments)
    assert (result.code, result.out) == (code, b"")
    assert result.err.startswith("dlcmd: ")
    assert result.err.count("\n") == 1
    assert said in result.err


def test_with_json_an_error_is_an_object(dlcmd: Dlcmd) -> None:
    for arguments in (["ls", "cows", "--json"], ["--json", "ls", "cows"]):
        record = json.loads(dlcmd(*arguments).err)
        assert (record["error"], record["exit_code"]) == ("DatasetNotFound", 3)
        assert record["message"] == "there is no dataset 'cows'"
        assert "dlcmd dataset ls" in record["hint"]
    assert json.loads(dlcmd("lss", "--json").err)["exit_code"] == 2


def test_a_traceback_only_with_debug(dlcmd: Dlcmd) -> None:
    assert "Traceback" in dlcmd("ls", "cows", "--debug").err
    assert "Traceback" not in dlcmd("ls", "cows").err


def test_an_interrupt_is_130(dlcmd: Dlcmd, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("dieselfs.cli.command_context.CommandContext.client", interrupt)
    result = dlcmd("ls", "cows")
    assert (result.code, result.err) == (130, "dlcmd: interrupted\n")


def test_the_help_and_the_documentation_list_every_code(dlcmd: Dlcmd) -> None:
    shown = dlcmd("--help").out.decode()
    documented = (Path(__file__).parents[3] / "docs/cli.md").read_text()
    for code in filter(lambda code: code.meaning, ExitCode):
        assert code.meaning.split(":")[0] in shown
        assert f"| {int(code)} |" in documented


def test_no_error_advises_a_verb_that_does_not_exist() -> None:
    packages = Path(__file__).parents[3]
    said = {
        command
        for package in ("chunkstore", "metadata", "dieselfs")
        for file in (packages / package).rglob("*.py")
        for command in re.findall(r"`dlcmd ([a-z]+)", file.read_text())
    }
    assert "ls" in said
    assert isinstance(dlcmd_group, click.Group)
    assert said <= set(dlcmd_group.list_commands(click.Context(dlcmd_group)))


def test_no_command_shows_the_help(dlcmd: Dlcmd) -> None:
    for arguments in ([], ["snapshot"]):
        result = dlcmd(*arguments)
        assert (result.code, result.out) == (2, b"")
        assert result.err.startswith("Usage: dlcmd")
        assert "Commands:" in result.err


def test_counts_in_messages_agree() -> None:
    """A number in a message stands before `counted`'s noun, not before a plural of its own."""
    plurals = "files|chunks|commits|processes|entries|members|nodes|snapshots|objects|datasets"
    uncounted = re.compile(rf"\{{[^{{}}]*\}} (deleted |more )?({plurals})\b(?!/s)")
    packages = Path(__file__).parents[3]
    found = [
        f"{file.name}: {line.strip()}"
        for file in (packages / "dieselfs/cli").rglob("*.py")
        for line in file.read_text().splitlines()
        if uncounted.search(line)
    ]
    assert not found


@pytest.mark.usefixtures("pets")
@pytest.mark.parametrize(
    "command",
    [
        ["ls"],
        ["fsck"],
        ["gc"],
        ["snapshot", "ls"],
        ["dataset", "rm", "-y"],
        ["mount", "--no-index"],
    ],
    ids=" ".join,
)
def test_a_misspelt_dataset_is_guessed(dlcmd: Dlcmd, command: list[str], mountpoint: Path) -> None:
    rest = [mountpoint] if "mount" in command else []
    result = dlcmd(*command, "pest", *rest, "--json")
    assert result.code in (ExitCode.DIRECTORY_NOT_FOUND, ExitCode.FILE_NOT_FOUND)
    if "mount" not in command:  # it looks for a snapshot
        assert json.loads(result.err)["hint"] == "did you mean 'pets'? `dlcmd dataset ls` lists all"


def test_with_json_notes_and_logs_are_objects_too(
    dlcmd: Dlcmd, tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    (tmp_path / "source").mkdir()
    (tmp_path / "source/a").write_bytes(b"a")
    (tmp_path / "source/link").symlink_to("a")
    options = ["--store", f"file://{tmp_path}/s", "--index", f"lmdb://{tmp_path}/i", "--json"]
    put = dlcmd("put", f"{tmp_path}/source/", "pets", "-j", "1", "--skip-links", *options)
    assert put.code == 0, put.err
    said = [json.loads(line) for line in put.err.splitlines()]
    assert {"log"} <= {record["event"] for record in said}
    assert any(f"created a new store at {tmp_path}/s" == record["message"] for record in said)
    Output(json=True).note("as you wish")
    assert json.loads(capfdbinary.readouterr().err) == {"event": "note", "message": "as you wish"}


@pytest.mark.parametrize(
    "command",
    [
        ["ls"],
        ["ls", "pets"],
        ["get", "pets"],
        ["stat", "pets:a"],
        ["put", "-n", ".", "pets"],
        ["mount", "pets", "."],
        ["snapshot", "ls", "pets"],
        ["dataset", "ls"],
        ["gc", "--all"],
    ],
    ids=" ".join,
)
def test_no_command_but_put_makes_the_default_store(
    dlcmd: Dlcmd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: list[str]
) -> None:
    monkeypatch.delenv("DIESELFS_STORE")
    monkeypatch.delenv("DIESELFS_INDEX")
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")
    result = dlcmd(*command)
    if command[0] == "put":
        assert (result.code, "nothing was put" in result.out.decode()) == (0, True)
    else:
        assert (result.code, "there is no store at" in result.err) == (5, True)
    assert not (tmp_path / "data").exists()


def test_put_makes_the_default_store_and_says_so(
    dlcmd: Dlcmd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DIESELFS_STORE")
    monkeypatch.delenv("DIESELFS_INDEX")
    (tmp_path / "source").mkdir()
    (tmp_path / "source/a").write_bytes(b"a")
    result = dlcmd("put", "--json", "-j", "1", f"{tmp_path}/source/", "pets")
    assert result.code == 0
    assert f"created a new store at {tmp_path}/data/dieselfs/store" in result.err
    assert (tmp_path / "data/dieselfs").stat().st_mode & 0o777 == 0o700
    assert dlcmd("ls", "pets").lines == ["a"]
