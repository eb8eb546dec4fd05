"""The command line, `dlcmd`.

A command parses its arguments, builds a request, calls the library, prints, and returns an exit
code. This module translates errors into one line on stderr and an exit code.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Any, Final, NoReturn

import click

from dieselfs.cli.command import Interrupted, ReaderGone
from dieselfs.cli.command_group import LazyCommands
from dieselfs.cli.mount_helper import as_dlcmd, is_mount_helper
from dieselfs.cli.rendering.exit_codes import PROGRAM, ExitCode, Failure, explain, report
from dieselfs.cli.rendering.standard_streams import (
    drop_unwritten_output,
    open_closed_streams,
    say,
    written_to_stdout,
)

_COMPLETE: Final = f"_{PROGRAM.upper()}_COMPLETE"
"""The variable by which a shell's script asks what a line may become."""
_NO_ARGUMENTS: Final[Any] = getattr(click.exceptions, "NoArgsIsHelpError", ())
"""The error, since click 8.2, of a group without a command. Its message is the help."""


def _print_version(context: click.Context, parameter: click.Parameter, value: bool) -> None:
    if value and not context.resilient_parsing:
        from importlib.metadata import PackageNotFoundError, version

        try:
            number = version("dieselfs")
        except PackageNotFoundError:  # started from a checkout that is not installed
            number = "(not installed)"
        click.echo(f"{PROGRAM} {number}")
        context.exit()


@click.command(cls=LazyCommands, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_version,
    help="Print the version.",
)
def dlcmd() -> None:
    """DieselFS: a file system for deep-learning training.

    Pack a dataset once, mount it read-only on every node, and read it fast in shuffled order.
    """


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run `dlcmd` and end the process with its exit code."""
    open_closed_streams()
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # NumPy's BLAS threads would only spin
    code = run_dlcmd(_given_arguments() if arguments is None else arguments)
    drop_unwritten_output()
    sys.exit(code)


def _given_arguments() -> Sequence[str]:
    if not is_mount_helper(sys.argv[0]):
        return sys.argv[1:]
    arguments = as_dlcmd(sys.argv[1:])
    return sys.exit(ExitCode.OK) if arguments is None else arguments


def run_dlcmd(arguments: Sequence[str]) -> int:
    """Run `dlcmd` and return its exit code. Never raises."""
    stdout = sys.stdout
    if _COMPLETE in os.environ:
        _complete_for_a_shell()
    try:
        result = dlcmd.main(list(arguments), prog_name=PROGRAM, standalone_mode=False)
        with written_to_stdout():
            sys.stdout.flush()
        return int(result or ExitCode.OK)
    except (ReaderGone, BrokenPipeError):
        return ExitCode.BROKEN_PIPE
    except SystemExit:
        if sys.stdout is not stdout:  # click replaces it where the reader of a help has gone
            return ExitCode.BROKEN_PIPE
        raise
    except (Interrupted, KeyboardInterrupt, click.Abort):
        if sys.stderr.isatty():
            print(file=sys.stderr)  # the terminal shows ^C
        failure = Failure(ExitCode.INTERRUPTED, "interrupted", "", "Interrupted")
    except click.exceptions.Exit as stop:
        return stop.exit_code
    except click.ClickException as error:
        if isinstance(error, _NO_ARGUMENTS):
            say(error.format_message())
            return ExitCode.USAGE
        failure = _explain_click(error)
    except Exception as error:
        if "--debug" in arguments:
            import traceback

            traceback.print_exc()
        failure = explain(error)
    report(failure, as_json=_wants_json(arguments))
    return failure.code


def _complete_for_a_shell() -> NoReturn:
    """Print what the shell asks for, and end at once, without waiting for what hangs."""
    from dieselfs.cli.rendering.completion_scripts import register

    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # a prompt shows no errors
    register()
    try:
        dlcmd.main([], prog_name=PROGRAM, complete_var=_COMPLETE)
    finally:
        sys.stdout.flush()
        os._exit(ExitCode.OK)


def _wants_json(arguments: Sequence[str]) -> bool:
    """Return True if `--json` is given, even if the arguments cannot be parsed."""
    own = arguments[: list(arguments).index("--")] if "--" in arguments else arguments
    return "--json" in own


def _explain_click(error: click.ClickException) -> Failure:
    context = getattr(error, "ctx", None)
    what = " ".join(error.format_message().split()).rstrip(".")
    hint = (
        ""
        if "; " in what or "Did you mean" in what
        else f"see `{context.command_path if context else PROGRAM} --help`"
    )
    return Failure(ExitCode.USAGE, what, hint, "UsageError")
