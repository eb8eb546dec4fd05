"""`dlcmd alloc profile`: a job's row of a job table, measured from its mount."""

from __future__ import annotations

import time
from contextlib import closing
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any, Final

import click

from dieselfs.cli.command import command
from dieselfs.cli.command_context import CommandContext
from dieselfs.cli.rendering.job_row import print_profile
from dieselfs.errors import MountError

if TYPE_CHECKING:
    from dieselfs.allocation.administration.profiled import Observation, Profile
    from dieselfs.allocation.directory.decisions import JobEntry

_TIMEOUT_S: Final = 5.0
_LOOK_EVERY_S: Final = 0.5
"""Mounts look at their readers once a second."""


@command(
    name="profile",
    examples=[
        "dlcmd alloc profile /mnt/imagenet",
        "dlcmd alloc profile /mnt/imagenet --seconds 60 > jobs.csv",
        "dlcmd alloc profile /mnt/imagenet --json",
    ],
)
@click.argument("mountpoint")
@click.option(
    "--seconds",
    type=click.FloatRange(min=2.0),
    default=10.0,
    show_default=True,
    metavar="N",
    help="How long it measures.",
)
def profile_command(context: CommandContext, mountpoint: str, seconds: float) -> None:
    """Measure a running job's row of JOBS.csv.

    It is the job that reads the mount. The speed is that of the time in which no read waited. If
    reads waited all the time, the speed is only a lower bound, which is said beside the row: give
    the job more remote IO for a while, with `dlcmd alloc set-io`, and measure again. GPUs and
    passes are those that were declared, or else 1: correct them.
    """
    from dieselfs.allocation.directory.directories import allocation_directory

    found = _measured(mountpoint, seconds)
    context = context.shared()
    with closing(allocation_directory(context.config.index.value)) as directory:
        entry = next((each for each in directory.jobs() if each.job == found.job.name), None)
    _print(context, found, entry)


def _print(context: CommandContext, found: Profile, entry: JobEntry | None) -> None:
    print_profile(context.output, found, entry)


def _measured(mountpoint: str, seconds: float) -> Profile:
    from dieselfs.allocation.administration.profiled import observation, profiled

    seen: list[Observation] = []
    ends = time.monotonic() + seconds
    while True:
        dataset, statistics = _statistics(mountpoint)
        found = observation(statistics)
        if found is not None:
            seen.append(found)
        left = ends - time.monotonic()
        if left <= 0:
            return profiled(statistics, dataset, seen)
        time.sleep(min(left, _LOOK_EVERY_S))


def _statistics(mountpoint: str) -> tuple[str, dict[str, Any]]:
    """Return the dataset of a mount, and its statistics. Raises `MountError`."""
    from dieselfs.fuse.mounts.control_names import STATISTICS_NAME
    from dieselfs.fuse.mounts.mount_table import entry_at, read_document
    from dieselfs.fuse.mounts.mountpoint import resolve

    path = resolve(Path(mountpoint))
    mount = entry_at(path)
    if mount is None or not mount.is_dieselfs:
        raise MountError(f"no DieselFS mount at {path}", "`dlcmd mounts` lists them")
    _, document = read_document(mount.mountpoint, STATISTICS_NAME, _TIMEOUT_S)
    if document is None:
        raise MountError(
            f"the mount at {path} does not answer", f"see `dlcmd stats {quote(str(path))}`"
        )
    return mount.shown.partition("@")[0], dict(document)
