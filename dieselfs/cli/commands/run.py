"""`dlcmd run`: run a command that reads FUSE mounts through an overlay."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NoReturn

import click

from dieselfs.cli.command import command
from dieselfs.cli.command_context import CommandContext
from dieselfs.cli.rendering.output import Output
from dieselfs.cli.rendering.standard_streams import say
from dieselfs.errors import MountError

CANNOT_RUN: Final = 126
NOT_FOUND: Final = 127
"""The exit codes of shells and env(1) for a command that cannot be run or is not there."""
_THREADS: Final = "OPENBLAS_NUM_THREADS"
"""`dlcmd` itself has it at 1, since a process with threads gets no user namespace."""


@command(
    examples=[
        "dlcmd run -- python train.py --data /mnt/imagenet",
        "dlcmd run -v -- torchrun --nproc-per-node 8 train.py",
    ]
)
@click.option("-v", "--verbose", is_flag=True, help="Print which mounts get an overlay.")
@click.option(
    "--mount",
    "mounts",
    multiple=True,
    metavar="DIR",
    help="Overlay only the mount at DIR, or those below it (default: all).",
)
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
def run(
    context: CommandContext, verbose: bool, mounts: tuple[str, ...], command: tuple[str, ...]
) -> int:
    """Run COMMAND so that Python reads FUSE mounts faster: its `open` then costs no request.

    COMMAND sees an overlay over each mount of the fuse front; mounts of the erofs front need none
    and stay as they are. The exit code is that of COMMAND, 127 if there is no
    such command, or 126 if it cannot be run.
    """
    os.environ[_THREADS] = "1"
    _prepare(context.output, verbose, mounts or ("/",))
    sys.stdout.flush()
    try:
        _execute(command)
    except OSError as error:
        say(f"dlcmd: cannot run {command[0]}: {error.strerror}")
        return NOT_FOUND if isinstance(error, FileNotFoundError) else CANNOT_RUN


run.allow_interspersed_args = False  # the command's options are its own, also without --


def _prepare(output: Output, verbose: bool, mounts: Sequence[str]) -> None:
    """Make the overlays, or print why the command runs without them."""
    from dieselfs.fuse.mounts.mountpoint import resolve
    from dieselfs.fuse.mounts.overlay_run import lay_overlays

    try:
        laid, problems = lay_overlays([resolve(Path(mount)) for mount in mounts])
    except MountError as error:
        output.note(f"dlcmd: warning: {error}; the command runs without an overlay: {error.hint}")
        return
    for problem in problems:
        output.note(f"dlcmd: warning: no overlay over {problem}")
    if verbose:
        shown = ", ".join(map(str, laid)) or "no mount: none has the fuse front"
        output.note(f"dlcmd: overlays over {shown}")


def _execute(command: Sequence[str]) -> NoReturn:
    """Become the command, with the signals and variables that `dlcmd` was started with."""
    for number in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores them, and exec keeps that
        signal.signal(number, signal.SIG_DFL)
    os.environ.pop(_THREADS, None)
    for setting in Path("/proc/self/environ").read_bytes().split(b"\0"):
        name, _, value = os.fsdecode(setting).partition("=")
        if name == _THREADS:
            os.environ[name] = value
    os.execvp(command[0], list(command))
