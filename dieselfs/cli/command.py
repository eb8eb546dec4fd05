"""The declaration of the commands of `dlcmd`.

A command is a click command whose first argument is the `CommandContext`. Its help has examples.
The options that every command has may stand before or after the command's name.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Sequence
from functools import update_wrapper
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import click

from dieselfs.cli.values.completed import complete_by_name
from dieselfs.cli.values.durations import Duration
from dieselfs.cli.values.sizes import Size as Size
from dieselfs.errors import UsageError

if TYPE_CHECKING:
    from dieselfs.dataset.path_filter import PathFilter, Rule

_RULES: Final = "dieselfs.cli.rules"
Decorator: TypeAlias = Callable[[Any], Any]


class ReaderGone(Exception):
    """The reader of our output has closed it, as in `dlcmd ls | head`.

    On a BrokenPipeError click would end the process.
    """


class Interrupted(Exception):
    """The user pressed Ctrl-C. On a KeyboardInterrupt click would write an empty line."""


class CommonOption(click.Option):
    """An option of every command, which the help lists in a section of its own."""


def _remember(context: click.Context, parameter: click.Parameter, value: object) -> object:
    """Store a common option in the metadata that all contexts of a run share.

    If an option is given twice, the innermost one counts.
    """
    if parameter.name and value not in (None, False):
        context.meta[parameter.name] = value
    return value


def common_options() -> list[click.Parameter]:
    """Return new objects of the common options; each command needs its own."""

    def option(*names: str, **how: Any) -> CommonOption:
        return CommonOption(names, expose_value=False, callback=_remember, **how)

    colors = click.Choice(["auto", "never", "always"])
    debug_help = "Print debug logs, and a traceback with every error."
    return [
        option("--store", metavar="URL", help="Object store."),
        option("--index", metavar="URL", help="Index of names."),
        option("--profile", metavar="NAME", help="Profile of the configuration file."),
        option("--json", is_flag=True, help="Print JSON, one object a line."),
        option("--wide", is_flag=True, help="Print whole ids, times and tables on a terminal."),
        option("-q", "--quiet", is_flag=True, help="Print only results and errors."),
        option("--only-show-errors", "quiet", is_flag=True, hidden=True),
        option("--no-progress", is_flag=True, help="Print no progress bar or lines."),
        option("--color", type=colors, help="Color names (default: auto)."),
        option("--no-color", "color", flag_value="never", hidden=True),
        option("--debug", is_flag=True, help=debug_help),
    ]


class DlcmdCommand(click.Command):
    """A command of `dlcmd`. `examples` are complete command lines."""

    def __init__(self, *args: Any, examples: Sequence[str] = (), **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.examples = examples
        self.params.extend(common_options())
        for parameter in self.params:
            complete_by_name(self.name, parameter)

    def parse_args(self, context: click.Context, args: list[str]) -> list[str]:
        given = list(args)
        rest = super().parse_args(context, args)
        if self.allow_interspersed_args:  # else the rest is another program's
            self._check_not_empty(context)
        if any(parameter.name == "exclude" for parameter in self.params):
            context.meta[_RULES] = self._rules_in_order(context, given)
        return rest

    def _check_not_empty(self, context: click.Context) -> None:
        """Refuse an empty argument, which a shell makes of a variable that is not set.

        As a path it would mean the current folder, or the root.
        """
        for parameter in self.params:
            if not _must_say_something(parameter):
                continue
            value = context.params.get(parameter.name or "")
            if value == "" or (isinstance(value, tuple) and "" in value):
                name = parameter.opts[0]
                if isinstance(parameter, click.Argument):
                    name = (parameter.metavar or name.upper()).strip("[]")
                which = name if value == "" else f"an argument of {name}"
                raise click.UsageError(f"{which} is empty; check the shell variables", context)

    def _rules_in_order(self, context: click.Context, args: list[str]) -> list[Rule]:
        """Return the rules of --exclude and --include in the order given.

        click groups values by option; only its parser knows the order between the two options.
        """
        from dieselfs.dataset.path_filter import Rule

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


def _must_say_something(parameter: click.Parameter) -> bool:
    """Return whether an empty value would be taken for another one, or for none at all."""
    if isinstance(parameter, click.Argument):
        return parameter.name != "job"  # readers without a job have the empty one
    return parameter.name in ("snapshot", "to")


def command(
    *,
    examples: Sequence[str],
    name: str | None = None,
    group: click.Group | None = None,
    needs_config: bool = True,
) -> Callable[[Callable[..., Any]], DlcmdCommand]:
    """Declare a function `f(context, …)` as a command, of `group` if there is one.

    The function returns the exit code; None means 0. A command that does not need the configuration
    works where that has a mistake.
    """

    def declare(function: Callable[..., Any]) -> DlcmdCommand:
        @click.pass_context
        def invoke(context: click.Context, /, *args: Any, **kwargs: Any) -> Any:
            from dieselfs.cli.command_context import CommandContext

            if _RULES in context.meta and "exclude" in kwargs:
                del kwargs["exclude"], kwargs["include"]
                kwargs["filters"] = _path_filter(context.meta[_RULES])
            if context.meta.get("debug"):
                import logging

                logging.basicConfig(level=logging.DEBUG, stream=sys.stderr)
            try:
                own = CommandContext.from_options(context.meta, needs_config=needs_config)
                return function(own, *args, **kwargs)
            except BrokenPipeError as error:
                raise ReaderGone from error
            except KeyboardInterrupt as error:
                raise Interrupted from error

        command = click.command(name, cls=DlcmdCommand, examples=examples)(
            update_wrapper(invoke, function)
        )
        assert isinstance(command, DlcmdCommand)
        if group is not None:
            group.add_command(command)
        return command

    return declare


def _path_filter(rules: Sequence[Rule]) -> PathFilter:
    from dieselfs.dataset.path_filter import PathFilter

    try:
        return PathFilter(rules)
    except re.error as error:
        raise UsageError(
            f"bad pattern {error.pattern!r}: {error.msg}", "correct the --exclude or --include"
        ) from error


def option_group(*options: Decorator) -> Decorator:
    """Return several options as one decorator; `--help` shows them in this order."""

    def decorate(function: Any) -> Any:
        for option in reversed(options):
            function = option(function)
        return function

    return decorate


filter_options: Final = option_group(
    click.option(
        "--exclude",
        multiple=True,
        metavar="PATTERN",
        help="Leave out paths that match; the first rule that matches decides.",
    ),
    click.option(
        "--include", multiple=True, metavar="PATTERN", help="Take paths that match (see --exclude)."
    ),
)
"""`--exclude` and `--include`; the command gets one `filters: PathFilter`."""

_in_units: Final[dict[str, Any]] = {"type": bool, "default": None}
human_option: Final = option_group(
    click.option(
        "-H",
        "--human",
        "human",
        flag_value=True,
        help="Print sizes with units (default on a terminal).",
        **_in_units,
    ),
    click.option("--bytes", "human", flag_value=False, hidden=True, **_in_units),
)
"""`-H/--human` and `--bytes`; the command gets `human: bool | None`.

None means units on a terminal and bytes elsewhere.
"""

dry_run_option: Final = option_group(
    click.option("-n", "--dry-run", "dry_run", is_flag=True, help="Only print what would be done."),
    click.option("--dryrun", "--dry", "dry_run", is_flag=True, hidden=True),
)
"""`-n/--dry-run`; the command gets `dry_run: bool`."""

yes_option: Final = click.option("-y", "--yes", is_flag=True, help="Don't ask for confirmation.")
"""`-y/--yes`; the command gets `yes: bool`."""

publish_option: Final = click.option(
    "--publish/--no-publish",
    default=True,
    help="At the end, publish a snapshot for mounts without an index (default).",
)
"""`--publish/--no-publish`; the command gets `publish: bool`."""


def recursive_option(help_text: str | None = None) -> Decorator:
    """Return the option `-r/--recursive`.

    It is hidden and has no effect where recursion is the default.
    """
    return click.option(
        "-r", "-R", "--recursive", is_flag=True, hidden=help_text is None, help=help_text
    )


def delete_limit_option(help_text: str) -> Decorator:
    """Return the option `--max-delete`; the command gets `max_delete`, and None means no limit."""
    return click.option("--max-delete", type=click.IntRange(min=0), metavar="N", help=help_text)


def jobs_option(default: int | None = None) -> Decorator:
    """Return the option `-j/--jobs`; the command gets `jobs`, and None means its own default."""
    return click.option(
        "-j",
        "--jobs",
        type=click.IntRange(1, 256),
        default=default,
        metavar="N",
        help="Number of parallel jobs.",
    )


def size_option(*names: str, help_text: str, default: str | None = None) -> Decorator:
    """Return an option whose value is a size; the command gets bytes, or None."""
    return click.option(
        *names,
        type=Size(),
        metavar="SIZE",
        default=default,
        show_default=default is not None,
        help=help_text,
    )


def log_to_stderr() -> None:
    """Log what a service does, as a service manager keeps it."""
    import logging

    logging.basicConfig(
        level=logging.INFO,
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
        stream=sys.stderr,
        force=True,
    )


def former_option(option: str, parameter: str, **like: Any) -> Decorator:
    """Return the former spelling of the option for `parameter`.

    It is accepted for one release, but hidden. Place it below the option itself, and give it the
    same type and default: click converts the value once for each of the two, and takes the last.
    """
    return click.option(option, parameter, hidden=True, **like)


def grace_option(help_text: str) -> Decorator:
    """Return the option `--grace`; the command gets `grace: float`, in seconds."""
    return click.option(
        "--grace", type=Duration(), default="7d", show_default=True, metavar="TIME", help=help_text
    )
