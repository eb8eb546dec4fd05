"""The click type of values that a shell completes.

An argument or option gets it by its metavar or its name, from the table below, so that a command
declares nothing. Choices, sizes and flags have types of their own.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final

import click

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from dieselfs.config import Config

SCHEME: Final = "dl://"
"""A copy of `dieselfs.dataset.address.SCHEME`, which the help need not load."""


class Completed(click.types.StringParamType):
    """A text that the shell completes by `complete(context, begun)`."""

    def __init__(self, complete: Callable[[click.Context, str], list[CompletionItem]]) -> None:
        self.complete = complete

    def shell_complete(
        self, context: click.Context, parameter: click.Parameter, begun: str
    ) -> list[CompletionItem]:
        """Return what the text may become; nothing if that cannot be told."""
        try:
            return self.complete(context, begun)
        except Exception:  # a prompt shows no errors
            return []


def complete_by_name(command: str | None, parameter: click.Parameter) -> None:
    """Give a parameter of a command that takes any text its completion, if it has one."""
    name, metavar = parameter.name or "", parameter.metavar or ""
    found = _BY_COMMAND.get((command or "", name)) or _BY_METAVAR.get(metavar) or _BY_NAME.get(name)
    if found is not None and parameter.type in (click.STRING, click.UNPROCESSED):
        parameter.type = Completed(found)


def _plain(names: Iterable[str], begun: str) -> list[CompletionItem]:
    from click.shell_completion import CompletionItem

    return [CompletionItem(name) for name in names if name.startswith(begun)]


def _files(context: click.Context, begun: str) -> list[CompletionItem]:
    from click.shell_completion import CompletionItem

    return [CompletionItem(begun, type="file")]


def _folders(context: click.Context, begun: str) -> list[CompletionItem]:
    from click.shell_completion import CompletionItem

    return [CompletionItem(begun, type="dir")]


def _config(context: click.Context) -> Config:
    """Return the places that the flags typed so far, the variables and the profile name."""
    from dieselfs.config import load_config

    given = context.meta
    return load_config(given.get("store"), given.get("index"), given.get("profile"))


def _datasets(context: click.Context, begun: str) -> list[CompletionItem]:
    from dieselfs.cli.values.known_names import dataset_names

    scheme = SCHEME if begun.startswith(SCHEME) else ""
    return _plain((scheme + name for name in dataset_names(_config(context))), begun)


def _snapshots(context: click.Context, begun: str) -> list[CompletionItem]:
    """Complete `DATASET` or `DATASET@SNAPSHOT`."""
    from dieselfs.cli.values.known_names import snapshot_names

    dataset, at, _ = begun.partition("@")
    if not at:
        return _datasets(context, begun)
    names = snapshot_names(_config(context), dataset.removeprefix(SCHEME))
    return _plain((f"{dataset}@{name}" for name in names), begun)


def _addresses(context: click.Context, begun: str) -> list[CompletionItem]:
    """Complete `DATASET[@SNAPSHOT]:PATH` or `dl://DATASET[@SNAPSHOT]/PATH`."""
    from dieselfs.cli.values.known_names import paths

    scheme, colon = (SCHEME, "/") if begun.startswith(SCHEME) else ("", ":")
    place, given, path = begun.removeprefix(scheme).partition(colon)
    if not given:
        found = [item.value for item in _snapshots(context, begun)]
        return _plain((each for name in found for each in (name, name + colon)), begun)
    dataset, _, snapshot = place.partition("@")
    names = paths(_config(context), dataset, snapshot or None, path)
    return _plain((f"{scheme}{place}{colon}{name}" for name in names), begun)


def _or_files(
    complete: Callable[[click.Context, str], list[CompletionItem]],
) -> Callable[[click.Context, str], list[CompletionItem]]:
    """Return a completion of files on this machine as well."""

    def both(context: click.Context, begun: str) -> list[CompletionItem]:
        is_path = begun.startswith(("/", ".", "~"))
        return [*([] if is_path else complete(context, begun)), *_files(context, begun)]

    return both


def _sources(context: click.Context, begun: str) -> list[CompletionItem]:
    """Complete files to put, and after the first one the dataset too."""
    given = context.params.get("places")
    return (_or_files(_addresses) if given else _files)(context, begun)


def _of_dataset(
    names_of: Callable[[Config, str], list[str]],
) -> Callable[[click.Context, str], list[CompletionItem]]:
    """Return a completion of names that belong to the dataset given before."""

    def complete(context: click.Context, begun: str) -> list[CompletionItem]:
        given = context.params.get("dataset") or context.params.get("address")
        if given is None and context.args:  # an option without its value: click names nothing
            given = context.args[0]
        dataset = str(given or "").removeprefix(SCHEME).partition("@")[0]
        return _plain(names_of(_config(context), dataset), begun) if dataset else []

    return complete


def _snapshots_of(config: Config, dataset: str) -> list[str]:
    from dieselfs.cli.values.known_names import snapshot_names

    return snapshot_names(config, dataset)


def _tags_of(config: Config, dataset: str) -> list[str]:
    from dieselfs.cli.values.known_names import tags

    return tags(config, dataset)


def _mountpoints(context: click.Context, begun: str) -> list[CompletionItem]:
    from dieselfs.cli.values.known_names import mountpoints

    here = "" if begun.startswith("/") else os.path.join(os.getcwd(), "")
    return _plain((point.removeprefix(here) for point in mountpoints()), begun)


def _tasks(context: click.Context, begun: str) -> list[CompletionItem]:
    from dieselfs.cli.values.known_names import task_names

    return _plain(task_names(), begun)


def _jobs(context: click.Context, begun: str) -> list[CompletionItem]:
    from dieselfs.cli.values.known_names import job_names

    return _plain(job_names(_config(context)), begun)


def _keys(context: click.Context, begun: str) -> list[CompletionItem]:
    from dieselfs.config import SHARED_KEYS

    return _plain(SHARED_KEYS, begun)


def _profiles(context: click.Context, begun: str) -> list[CompletionItem]:
    from dieselfs.cli.values.known_names import profile_names

    return _plain(profile_names(), begun)


_BY_METAVAR: Final = {
    "DATASET[@SNAPSHOT]": _snapshots,
    "DATASET[@ID]": _snapshots,
    "DATASET@ID": _snapshots,
    "DATASET[@ID]|FILE": _or_files(_snapshots),
    "FILE|DATASET[@ID]": _or_files(_snapshots),
    "SRC... DST": _sources,
    "FILE": _files,
    "FOLDER": _folders,
    "FILE|ID": _or_files(_of_dataset(_snapshots_of)),
    "SNAPSHOT": _of_dataset(_snapshots_of),
}
_BY_NAME: Final = {
    "address": _addresses,
    "addresses": _addresses,
    "source": _addresses,
    "dataset": _datasets,
    "local": _files,
    "file": _files,
    "job": _jobs,
    "key": _keys,
    "mountpoint": _mountpoints,
    "mountpoints": _mountpoints,
    "tag": _of_dataset(_tags_of),
    "task": _tasks,
    "profile": _profiles,
}
_BY_COMMAND: Final = {
    ("mount", "mountpoint"): _folders,
    ("info", "name"): _datasets,
    ("rm", "name"): _datasets,
    ("show", "name"): _tasks,
    ("run", "mounts"): _mountpoints,
    ("run", "command"): _files,
    ("why", "paths"): _files,
    ("advise", "traces"): _files,
    ("advise", "plot"): _files,
}
"""Parameters whose name means something else in another command."""
