"""`--ssd` and `--ssd-size` of the verbs that need an SSD tier."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import click

from dieselfs.cli.invocation import Invocation
from dieselfs.cli.verb import Decorated, Size
from dieselfs.errors import UsageError

if TYPE_CHECKING:
    from dieselfs.ssd_tier import SsdSettings


def ssd_flags(function: Decorated) -> Decorated:
    """The verb gets `ssd: str | None` and `ssd_size: int | None`."""
    function = click.option(
        "--ssd-size", type=Size(), metavar="SIZE", help="What it may take of the SSD from now on."
    )(function)
    return click.option(
        "--ssd", metavar="FOLDER", help="The tier's folder (default: as configured)."
    )(function)


def chosen_ssd(invocation: Invocation, folder: str | None, size: int | None) -> SsdSettings:
    """`UsageError` if there is none, `ConfigError` if it can't be one."""
    from dieselfs.ssd_options import SsdOptions
    from dieselfs.ssd_tier import configured, ssd_settings

    said = SsdOptions(None if folder is None else os.path.abspath(folder), size)
    options = said.otherwise(configured(invocation.config))
    settings = None if options.folder is None else ssd_settings(options)
    if settings is None:
        raise UsageError(
            "no SSD tier is configured",
            "add --ssd FOLDER, or set DIESELFS_SSD or `ssd` of a profile",
        )
    settings.check()
    return settings
