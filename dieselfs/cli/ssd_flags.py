"""`--ssd` and `--ssd-size` of the verbs that need an SSD tier."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import click

from dieselfs.cli.invocation import CommandContext
from dieselfs.cli.verb import Decorated, Size
from dieselfs.errors import UsageError
from dieselfs.ssd_options import SsdOptions, typed_folder

if TYPE_CHECKING:
    from dieselfs.ssd_tier import SsdSettings


def ssd_flags(function: Decorated) -> Decorated:
    """The verb gets `ssd: str | None` and `ssd_size: int | None`."""
    function = click.option(
        "--ssd-size",
        type=Size(),
        metavar="SIZE",
        help="What it may take of the SSD from now on (default: as configured, or as before).",
    )(function)
    return click.option(
        "--ssd", metavar="FOLDER", help="The tier's folder (default: as configured)."
    )(function)


def chosen_ssd(
    context: CommandContext, folder: str | None, size: int | None, *, looks: bool = False
) -> SsdSettings:
    """`UsageError` if there is none, `ConfigError` if it can't be one. Who only `looks` leaves the tier the size that it has."""
    settings = configured_ssd(context, folder, size, looks=looks)
    if settings is None:
        raise UsageError(
            "no SSD tier is configured",
            "add --ssd FOLDER, or set DIESELFS_SSD or `ssd` of a profile",
        )
    return settings


def configured_ssd(
    context: CommandContext, folder: str | None, size: int | None, *, looks: bool = False
) -> SsdSettings | None:
    """The same, for who does without: None."""
    from dieselfs.ssd_tier import configured, ssd_settings

    options = SsdOptions(typed_folder(folder), size).otherwise(configured(context.config))
    settings = None if options.folder is None else ssd_settings(options)
    if settings is None:
        return None
    settings = replace(settings, only_looks=looks and size is None)
    settings.check()
    return settings
