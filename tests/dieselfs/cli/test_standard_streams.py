"""Standard streams that are closed, full, or read by nobody: no traceback, and the right code."""

import errno
import io
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from dieselfs.cli.rendering.live import show_until_interrupted
from dieselfs.cli.rendering.output import Output
from dieselfs.cli.rendering.progress import Lines
from dieselfs.cli.rendering.standard_streams import open_closed_streams, say
from dieselfs.errors import MountError

CHECKOUT = Path(__file__).parents[3]
PROGRAM = "import sys; from dieselfs.cli import main; main(sys.argv[1:])"


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    environment = {**os.environ, "HOME": str(tmp_path), "PYTHONPATH": str(CHECKOUT)}
    for name in ("DIESELFS_STORE", "XDG_DATA_HOME", "XDG_CONFIG_HOME", "DIESELFS_PROFILE"):
        environment.pop(name, None)

    def call(redirected: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        shell = ["sh", "-c", f'exec "$@" {redirected}', "sh"]
        command = [*shell, sys.executable, "-c", PROGRAM, *arguments]
        return subprocess.run(
            command, env=environment, capture_output=True, text=True, stdin=subprocess.DEVNULL
        )

    return call


@pytest.mark.parametrize(
    ("redirected", "arguments", "code", "said"),
    [
        (">&-", ["ls", "pets"], 5, "there is no store"),
        (">&-", ["completion", "bash"], 1, "cannot write to standard output: Bad file descriptor"),
        (">/dev/full", ["completion", "bash"], 1, "cannot write to standard output: No space"),
        (">&-", ["--version"], 1, "Bad file descriptor"),
        ("<&- >&- 2>&-", ["ls", "pets"], 5, ""),
        ("2>/dev/full", ["ls", "pets"], 5, ""),
        ("2>/dev/full", [], 2, ""),
        ("<&-", ["put", "--files-from", "-", ".", "pets"], 1, "--files-from -: Bad file"),
    ],
)
def test_streams_that_are_closed_or_full(
    run: Callable[..., subprocess.CompletedProcess[str]],
    redirected: str,
    arguments: Sequence[str],
    code: int,
    said: str,
) -> None:
    done = run(redirected, *arguments)
    assert (done.returncode, done.stdout) == (code, "")
    lines = done.stderr.splitlines()
    assert len(lines) == bool(said), done.stderr
    assert said in done.stderr


def test_a_help_whose_reader_has_gone_is_no_error() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, "--help"], cwd=CHECKOUT, stdout=writing, stderr=-1
    )
    os.close(writing)
    assert (done.returncode, done.stderr) == (141, b"")


def test_no_other_file_gets_the_number_of_a_closed_stream(tmp_path: Path) -> None:
    child = os.fork()
    if child == 0:
        status = 1
        try:
            for number in range(3):
                os.close(number)
            open_closed_streams()
            kinds = {os.readlink(f"/proc/self/fd/{number}") for number in range(3)}
            status = 0 if kinds == {os.devnull} else 2
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


class Full(io.TextIOBase):
    """A stream to a full disk."""

    def write(self, text: str, /) -> int:
        raise OSError(errno.ENOSPC, "full")


def test_a_note_that_cannot_be_written_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", Full())
    say("a note")
    Lines("put").show()


def test_an_error_comes_before_the_terminal_is_taken(capfd: pytest.CaptureFixture[str]) -> None:
    def samples() -> Iterator[str]:
        raise MountError("no mount")
        yield ""

    with pytest.raises(MountError):
        show_until_interrupted(Output(terminal=True), samples(), print, str)
    assert capfd.readouterr().out == ""
