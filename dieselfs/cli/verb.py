"""How a verb is declared: a click command whose first argument is the `CommandContext`, with the options that every verb has and
with examples in its help. The common options may stand before or after the verb.
"""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Callable, Sequence
from functools import update_wrapper
from typing import Any, Final, TypeVar

import click

from dieselfs.cli.invocation import CommandContext
from dieselfs.cli.sizes import parse_size
from dieselfs.errors import UsageError
from dieselfs.path_filter import PathFilter, Rule

_RULES: Final = "dieselfs.cli.rules"
Decorated = TypeVar("Decorated", bound=Callable[..., Any])


class ReaderGone(Exception):
    """Whoever reads our output has gone, as in `dlcmd ls | head`. (click would end the process on a BrokenPipeError.)"""


class Interrupted(Exception):
    """Ctrl-C. (click would write an empty line.)"""


class CommonOption(click.Option):
    """An option that every verb has; listed apart in its help."""


def _remember(context: click.Context, parameter: click.Parameter, value: object) -> object:
    """Common options are collected in the meta data that all contexts of a run share: the innermost one given counts."""
    if parameter.name and value not in (None, False):
        context.meta[parameter.name] = value
    return value


def common_options() -> list[click.Parameter]:
    """Fresh objects, one set for each command."""
    shared: dict[str, Any] = {"expose_value": False, "callback": _remember}
    return [
        CommonOption(["--store"], metavar="URL", help="Object store.", **shared),
        CommonOption(["--index"], metavar="URL", help="Index of names.", **shared),
        CommonOption(
            ["--profile"], metavar="NAME", help="Profile of the configuration file.", **shared
        ),
        CommonOption(["--json"], is_flag=True, help="JSON, one object a line.", **shared),
        CommonOption(["-q", "--quiet"], is_flag=True, help="Only results and errors.", **shared),
        CommonOption(["--only-show-errors", "quiet"], is_flag=True, hidden=True, **shared),
        CommonOption(["--no-progress"], is_flag=True, help="No progress bar or lines.", **shared),
        CommonOption(
            ["--color"],
            type=click.Choice(["auto", "never", "always"]),
            help="Default: auto.",
            **shared,
        ),
        CommonOption(["--no-color", "color"], flag_value="never", hidden=True, **shared),
        CommonOption(["--debug"], is_flag=True, help="A traceback with every error.", **shared),
    ]


class DlcmdCommand(click.Command):
    """A command of `dlcmd`. `examples` are complete command lines."""

    def __init__(self, *args: Any, examples: Sequence[str] = (), **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.examples = examples
        self.params.extend(common_options())

    def parse_args(self, context: click.Context, args: list[str]) -> list[str]:
        given = list(args)
        rest = super().parse_args(context, args)
        if any(parameter.name == "exclude" for parameter in self.params):
            context.meta[_RULES] = self._rules_in_order(context, given)
        return rest

    def _rules_in_order(self, context: click.Context, args: list[str]) -> list[Rule]:
        """click groups values by option; which of --exclude and --include came first only its parser knows."""
        values, _, order = self.make_parser(context).parse_args(args=args)
        queues = {name: iter(values.get(name) or ()) for name in ("exclude", "include")}
        return [
            Rule(parameter.name == "include", next(queues[parameter.name]))
            for parameter in order
            if parameter.name in queues
        ]

    def format_options(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        own: list[tuple[str, str]] = []
        common: list[tuple[str, str]] = []
        for parameter in self.get_params(context):
            record = (
                parameter.get_help_record(context) if isinstance(parameter, click.Option) else None
            )
            if record:
                (common if isinstance(parameter, CommonOption) else own).append(record)
        for title, records in (("Options", own), ("Options of every command", common)):
            if records:
                with formatter.section(title):
                    formatter.write_dl(records)

    def format_epilog(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        if self.examples:
            with formatter.section("Examples"):
                for example in self.examples:
                    formatter.write(f"{'':{formatter.current_indent}}{example}\n")


def command(
    *, examples: Sequence[str], name: str | None = None
) -> Callable[[Callable[..., Any]], DlcmdCommand]:
    """Declare a function `f(context, …)` as a verb; what it returns is the exit code, None is 0."""

    def declare(function: Callable[..., Any]) -> DlcmdCommand:
        @click.pass_context
        def invoke(context: click.Context, /, *args: Any, **kwargs: Any) -> Any:
            if _RULES in context.meta and "exclude" in kwargs:
                del kwargs["exclude"], kwargs["include"]
                kwargs["filters"] = _path_filter(context.meta[_RULES])
            if context.meta.get("debug"):
                logging.basicConfig(level=logging.DEBUG, stream=sys.stderr)
            try:
                return function(CommandContext.from_options(context.meta), *args, **kwargs)
            except BrokenPipeError as error:
                raise ReaderGone from error
            except KeyboardInterrupt as error:
                raise Interrupted from error

        command = click.command(name, cls=DlcmdCommand, examples=examples)(
            update_wrapper(invoke, function)
        )
        assert isinstance(command, DlcmdCommand)
        return command

    return declare


def _path_filter(rules: Sequence[Rule]) -> PathFilter:
    try:
        return PathFilter(rules)
    except re.error as error:
        raise UsageError(
            f"bad pattern {error.pattern!r}: {error.msg}", "correct the --exclude or --include"
        ) from error


class Size(click.ParamType):  # type: ignore[type-arg]  # generic from click 8.4 on
    """A size in bytes, written as people do: 64MiB."""

    name = "size"

    def convert(
        self, value: Any, parameter: click.Parameter | None, context: click.Context | None
    ) -> int:
        return value if isinstance(value, int) else parse_size(str(value))


def filter_options(function: Decorated) -> Decorated:
    """`--exclude` and `--include`; the verb gets one `filters: PathFilter`."""
    function = click.option(
        "--include", multiple=True, metavar="PATTERN", help="Take what matches (see --exclude)."
    )(function)
    return click.option(
        "--exclude",
        multiple=True,
        metavar="PATTERN",
        help="Leave out what matches; the first match decides.",
    )(function)


def human_option(function: Decorated) -> Decorated:
    """`-H/--human` and `--bytes`; the verb gets `human: bool | None`, None: as stdout suggests."""
    function = click.option(
        "--bytes", "human", flag_value=False, type=bool, default=None, hidden=True
    )(function)
    return click.option(
        "-H",
        "--human",
        "human",
        flag_value=True,
        type=bool,
        default=None,
        help="Sizes with units (default on a terminal).",
    )(function)


def recursive_option(help_text: str | None = None) -> Callable[[Decorated], Decorated]:
    """`-r/--recursive`; hidden, and without effect, where recursion is the default."""
    return click.option(
        "-r", "-R", "--recursive", is_flag=True, hidden=help_text is None, help=help_text
    )


def dry_run_option(function: Decorated) -> Decorated:
    function = click.option("--dryrun", "--dry", "dry_run", is_flag=True, hidden=True)(function)
    return click.option("-n", "--dry-run", "dry_run", is_flag=True, help="Say what would be done.")(
        function
    )


def jobs_option(default: int | None = None) -> Callable[[Decorated], Decorated]:
    return click.option(
        "-j",
        "--jobs",
        type=click.IntRange(1, 256),
        default=default,
        metavar="N",
        help="How many at a time.",
    )


def former_option(option: str, parameter: str) -> Callable[[Decorated], Decorated]:
    """The former spelling of the option for `parameter`: accepted for one release, not advertised.

    It goes below the option itself.
    """
    return click.option(option, parameter, hidden=True)


def yes_option(function: Decorated) -> Decorated:
    return click.option("-y", "--yes", is_flag=True, help="Don't ask.")(function)
