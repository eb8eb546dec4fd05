"""The options that say what a cluster has, for commands that divide it among jobs."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

import click

from dieselfs.cli.command import size_option
from dieselfs.errors import UsageError

if TYPE_CHECKING:
    from dieselfs.allocation.jobs import Job, Resources


policy_option: Final = click.option(
    "--policy",
    metavar="NAME",
    default="fifo",
    show_default=True,
    help="greedy, fifo, sjf or max-min.",
)
"""`--policy`; the command gets the name of the policy that divides."""


def cluster_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the options `--cache`, `--remote-io` and `--gpus`."""
    for option in (
        click.option(
            "--gpus",
            type=click.IntRange(1),
            metavar="N",
            help="GPUs of the cluster (default: enough for all jobs).",
        ),
        click.option(
            "--remote-io", metavar="RATE", help="What the store gives to the whole cluster."
        ),
        size_option("--cache", help_text="The cache of the whole cluster."),
    ):
        function = option(function)
    return function


def resources_of(
    jobs: Sequence[Job], cache: int | None, remote_io: str | None, gpus: int | None
) -> Resources:
    """Return what the options say, with enough GPUs for all jobs by default.

    Raises `UsageError`.
    """
    from dieselfs.allocation.job_table import byte_rate
    from dieselfs.allocation.jobs import Resources

    if cache is None or remote_io is None:
        missing = "--cache" if cache is None else "--remote-io"
        raise UsageError(f"{missing} is not given", "say what is to be divided")
    io = byte_rate("--remote-io", remote_io)
    if not 0 <= io < math.inf:
        raise UsageError(f"--remote-io of {remote_io}", "write for instance 200MB/s")
    return Resources(gpus or sum(job.gpus for job in jobs), cache, io)
