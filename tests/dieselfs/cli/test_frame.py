"""What all verbs share: options, help, start-up, output, progress."""

import io
import json
import os
import subprocess
import sys
from pathlib import Path

import click
import pytest

from chunkstore.progress import NO_PROGRESS
from dieselfs.cli import dlcmd as root
from dieselfs.cli.command import DlcmdCommand
from dieselfs.cli.command_group import COMMANDS
from dieselfs.cli.mount_helper import as_dlcmd
from dieselfs.cli.mounting.mount_options import parse_mount_options
from dieselfs.cli.rendering import progress
from dieselfs.cli.rendering.output import Output, counted, printable
from dieselfs.cli.values.sizes import human_size, parse_size
from dieselfs.errors import UsageError
from tests.dieselfs.cli.conftest import Dlcmd

CHECKOUT = Path(__file__).parents[3]


def every_verb() -> list[tuple[str, DlcmdCommand]]:
    context = click.Context(root, info_name="dlcmd")
    found: list[tuple[str, DlcmdCommand]] = []
    for name in root.list_commands(context):
        command = root.get_command(context, name)
        if isinstance(command, click.Group):
            found.extend(
                (f"{name} {sub}", below)
                for sub, below in command.commands.items()
                if isinstance(below, DlcmdCommand)
            )
        elif isinstance(command, DlcmdCommand):
            found.append((name, command))
    return found


def test_all_verbs_of_the_table_exist() -> None:
    assert {name.split()[0] for name, _ in every_verb()} == set(COMMANDS)


@pytest.mark.parametrize(("name", "command"), every_verb(), ids=[name for name, _ in every_verb()])
def test_the_help_of_every_verb_has_examples(
    dlcmd: Dlcmd, name: str, command: DlcmdCommand
) -> None:
    assert command.examples
    assert command.help
    result = dlcmd(*name.split(), "--help")
    assert result.code == 0
    assert all(example in result.out.decode() for example in command.examples)


@pytest.mark.parametrize(("name", "command"), every_verb(), ids=[name for name, _ in every_verb()])
def test_examples_can_be_parsed(name: str, command: DlcmdCommand) -> None:
    for example in command.examples:
        piped = example.partition("#")[0].partition(">")[0].split("|")
        [words] = [part.split() for part in piped if part.strip().startswith(f"dlcmd {name}")]
        arguments = [word.strip("'") for word in words[1 + len(name.split()) :]]
        command.make_context(name, arguments)


@pytest.mark.parametrize("group", ["", "snapshot", "dataset", "cache", "task", "config"])
def test_summaries_are_whole(dlcmd: Dlcmd, group: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    shown = dlcmd(*group.split(), "--help").out.decode().partition("Commands:\n")[2]
    summaries = shown.partition("\n\n")[0].splitlines()
    assert len(summaries) >= 3
    assert all(line.endswith(".") and not line.endswith("..") for line in summaries)


def test_help_imports_nothing_heavy() -> None:
    script = (
        "import sys; from dieselfs.cli import run_dlcmd; run_dlcmd(['--help']); "
        "print(*sorted({'numpy', 'rich', 'redis', 'lmdb', 'xxhash'} & set(sys.modules)), file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=CHECKOUT, capture_output=True, text=True, check=True
    )
    assert done.stderr.strip() == ""


def test_a_reader_that_has_gone_is_no_error(tmp_path: Path) -> None:
    environment = {**os.environ, "XDG_DATA_HOME": str(tmp_path)}
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "dieselfs.cli", "completion", "bash"]
    done = subprocess.run(
        command, cwd=CHECKOUT, env=environment, stdout=writing, stderr=subprocess.PIPE, check=False
    )
    os.close(writing)
    assert (done.returncode, done.stderr) == (141, b"")


def test_version(dlcmd: Dlcmd) -> None:
    assert dlcmd("--version").out.startswith(b"dlcmd ")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts(dlcmd: Dlcmd, shell: str) -> None:
    assert b"_DLCMD_COMPLETE" in dlcmd("completion", shell).out


def test_common_options_stand_before_or_after_the_verb(dlcmd: Dlcmd) -> None:
    for arguments in (["--json", "mounts", "-q"], ["-q", "mounts", "--json"]):
        assert dlcmd(*arguments).code == 0


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("4096", 4096),
        ("64MiB", 64 << 20),
        ("2G", 2 << 30),
        ("1.5k", 1536),
        ("10 kb", 10240),
        ("7B", 7),
    ],
)
def test_sizes_are_read(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "x", "-1", "1X", "1 2"])
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(UsageError):
        parse_size(text)


@pytest.mark.parametrize(
    ("size", "shown"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (102_399, "100 KiB"),
        (1_048_575, "1.0 MiB"),
        (4 << 20, "4.0 MiB"),
        (5 << 60, "5.0 EiB"),
    ],
)
def test_sizes_are_shown(size: int, shown: str) -> None:
    assert human_size(size) == shown


def test_counts() -> None:
    assert [
        counted(1, "file"),
        counted(2000, "file"),
        counted(0, "directory"),
        counted(2, "process"),
    ] == [
        "1 file",
        "2,000 files",
        "0 directories",
        "2 processes",
    ]


def test_names_cannot_command_a_terminal() -> None:
    name = os.fsdecode(b"caf\xe9 \x1b[31m\n")
    assert printable(name) == r"caf\xe9 \x1b[31m\n"
    assert Output(terminal=True).name(name) == printable(name)
    assert Output(terminal=False).name(name) == name


def test_sizes_are_for_people_on_a_terminal_only() -> None:
    assert Output(terminal=True).size(2048) == "2.0 KiB"
    assert Output(terminal=True).size(2048, human=False) == "2048"
    assert Output().size(2048) == "2048"
    assert Output().size(2048, human=True) == "2.0 KiB"


SNAPSHOT_ID = "12-8d3f0112" + "a" * 24


def test_a_table_fits_the_terminal(
    monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    headings, row = ["NAME", "HITS", "SINCE", "STATE"], ["n" * 30, "h" * 20, "s" * 30, "ok"]

    def shown(output: Output, *expendable: str) -> tuple[str, str]:
        output.table(headings, [row], expendable)
        sys.stdout.flush()
        out, err = capfdbinary.readouterr()
        return out.decode().splitlines()[0], err.decode()

    assert shown(Output(terminal=True), "SINCE", "HITS") == (
        f"{'NAME':<32}{'HITS':<22}STATE",
        "columns left out: SINCE; --wide shows all\n",
    )
    for whole in (Output(), Output(terminal=True, wide=True)):
        assert shown(whole, "SINCE") == (f"{'NAME':<32}{'HITS':<22}{'SINCE':<32}STATE", "")
    monkeypatch.setenv("COLUMNS", "100")
    assert shown(Output(terminal=True), "SINCE")[0].split() == headings


def test_cells_are_shortened_where_columns_left_out_are_not_enough(
    monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    key = "datasets/pets/chunks/" + "k" * 60
    row = ["chunk", key, "no commit names it, since the put that stored it was killed", "garbage"]
    headings = ["KIND", "WHERE", "WHY", "STATE"]
    Output(terminal=True).table(headings, [row])
    Output(terminal=True, wide=True).table(headings, [row])
    sys.stdout.flush()
    out, err = capfdbinary.readouterr()
    cut, whole = (line for line in out.decode().splitlines() if "garbage" in line)
    assert len(cut) == 80
    assert cut.startswith("chunk  datas…kkk")
    assert whole.split("  ") == row
    assert err.decode() == "values are shortened (…); --wide shows all\n"


def test_ids_and_times_are_short_on_a_terminal() -> None:
    terminal, pipe, wide = Output(terminal=True), Output(), Output(terminal=True, wide=True)
    assert terminal.snapshot_id(SNAPSHOT_ID) == "12-8d3f0112"
    assert pipe.snapshot_id(SNAPSHOT_ID) == wide.snapshot_id(SNAPSHOT_ID) == SNAPSHOT_ID
    assert terminal.snapshot_id("v1") == "v1"
    assert len(terminal.time(0)) == len("1970-01-01 00:00:00")
    assert pipe.time(0) == wide.time(0) == "1970-01-01T00:00:00.000000000Z"


def test_progress_in_a_log_is_a_line_every_ten_seconds(capsys: pytest.CaptureFixture[str]) -> None:
    now = [0.0]
    lines = progress.Lines("get", clock=lambda: now[0])
    lines.expect(100, 0)
    for now[0] in (1.0, 9.9, 10.0, 19.0, 20.0):
        lines.advance(10, 1024)
    assert capsys.readouterr().err.splitlines() == [
        "get: 30 of 100 files, 3.0 KiB, 3 files/s, 307 B/s",
        "get: 50 of 100 files, 5.0 KiB, 2 files/s, 256 B/s",
    ]


def test_progress_counts_one_file(capsys: pytest.CaptureFixture[str]) -> None:
    now = [0.0]
    lines = progress.Lines("get", clock=lambda: now[0])
    lines.expect(1, 0)
    now[0] = 10.0
    lines.advance(1, 0)
    assert capsys.readouterr().err.startswith("get: 1 of 1 file, 0 B")


def test_progress_for_programs_is_an_object(capsys: pytest.CaptureFixture[str]) -> None:
    now = [0.0]
    lines = progress.Lines("get", as_json=True, clock=lambda: now[0])
    now[0] = 10.0
    lines.advance(7, 70)
    record = json.loads(capsys.readouterr().err)
    assert [record[key] for key in ("event", "files", "bytes", "files_expected")] == [
        "progress",
        7,
        70,
        None,
    ]


def test_a_bar_is_drawn_on_a_terminal_only(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    with progress.progress_of("get") as bar:
        bar.expect(2, 2048)
        bar.advance(1, 2048)
    assert "1 of 2 files" in terminal.getvalue()
    assert "2.0 KiB" in terminal.getvalue()
    with progress.progress_of("get", silent=True) as silent:
        assert silent is NO_PROGRESS


def test_fstab_options() -> None:
    options = parse_mount_options(
        ["rw,nofail,_netdev,x-systemd.automount", "allow_other,uid=1000,cache-memory=2G"]
    )
    assert options == {"allow_other": "", "uid": "1000", "cache_memory": "2G"}


@pytest.mark.parametrize("text", ["uid", "allow_other=1", "bogus", "uid="])
def test_wrong_fstab_options(text: str) -> None:
    with pytest.raises(UsageError):
        parse_mount_options([text])


def test_mount_runs_us_as_its_helper() -> None:
    given = ["dl://pets", "/mnt/pets", "-sn", "-o", "rw,uid=7", "-t", "dieselfs"]
    assert as_dlcmd(given) == ["mount", "dl://pets", "/mnt/pets", "-o", "rw,uid=7"]
    assert as_dlcmd([*given, "-f"]) is None
