"""The options `--ssd` and `--ssd-size` of the commands that need an SSD tier."""

from __future__ import annotations

import os
from dataclasses import replace
from shlex import quote
from typing import TYPE_CHECKING, Final

import click

from dieselfs.cache.ssd.options import SsdOptions, typed_folder
from dieselfs.cli.command import option_group, size_option
from dieselfs.cli.command_context import CommandContext
from dieselfs.errors import UsageError

if TYPE_CHECKING:
    from dieselfs.cache.ssd.settings import SsdSettings


ssd_flags: Final = option_group(
    click.option(
        "--ssd", metavar="FOLDER", help="Folder of the SSD tier (default: as configured)."
    ),
    size_option(
        "--ssd-size",
        help_text="Budget of the SSD tier from now on, not below the present one "
        "(default: as configured, or as before).",
    ),
)
"""`--ssd` and `--ssd-size`; the command gets `ssd: str | None` and `ssd_size: int | None`."""


def chosen_ssd(
    context: CommandContext,
    folder: str | None,
    size: int | None,
    *,
    only_looks: bool = False,
) -> SsdSettings:
    """Return the settings of the SSD tier.

    `only_looks` is for commands that load nothing: unless `size` is given, they make no tier, and
    the tier keeps its size. Raises `UsageError` if no tier is named, and `ConfigError` for a folder
    that can't be one.
    """
    settings = configured_ssd(context, folder, size, only_looks=only_looks)
    if settings is None:
        raise UsageError(
            "no SSD tier is configured",
            "add --ssd FOLDER, or set DIESELFS_SSD, `ssd` of a profile, or `dlcmd config set ssd "
            "FOLDER`",
        )
    return settings


def configured_ssd(
    context: CommandContext,
    folder: str | None,
    size: int | None,
    *,
    only_looks: bool = False,
) -> SsdSettings | None:
    """Return the same settings, or None for a command that can do without a tier."""
    from dieselfs.cache.ssd.settings import configured, ssd_settings

    if folder is None and context.config.ssd is None:
        context = context.shared()
    options = SsdOptions(typed_folder(folder), size).otherwise(configured(context.config))
    settings = None if options.folder is None else ssd_settings(options)
    if settings is None:
        return None
    settings = replace(settings, only_looks=only_looks and size is None)
    settings.check()
    kept = settings.kept_size()
    if kept is None:
        return settings
    if size is not None:
        raise UsageError(
            kept,
            f"leave out --ssd-size, or run `dlcmd cache resize {size} --ssd "
            f"{quote(os.fspath(settings.folder))}`, which is for all",
        )
    context.output.note(f"{kept}, so it keeps its size; see `dlcmd cache resize --help`")
    return replace(settings, budget_bytes=None)
