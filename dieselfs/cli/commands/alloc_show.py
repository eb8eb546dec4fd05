"""`dlcmd alloc show`: what jobs may use, what they use, who decided it, and why."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING

import click

from dieselfs.cli.command import command
from dieselfs.cli.command_context import CommandContext
from dieselfs.cli.rendering.allocation_overview import Shown, one_job_shown, overview_shown
from dieselfs.cli.rendering.live import show_until_interrupted
from dieselfs.cli.rendering.output import Output
from dieselfs.errors import RegistryUnavailable, UsageError

if TYPE_CHECKING:
    from dieselfs.allocation.directory.port import AllocationDirectory


@command(
    name="show",
    examples=[
        "dlcmd alloc show",
        "dlcmd alloc show resnet-1 --explain",
        "dlcmd alloc show --refresh 2",
        "dlcmd alloc show --json | jq .job,.io_bytes_per_s",
    ],
)
@click.argument("job", metavar="[JOB]", required=False)
@click.option("--explain", is_flag=True, help="Say of each job what limits it, and why.")
@click.option(
    "--refresh",
    type=click.FloatRange(min=0.1),
    metavar="S",
    help="Repeat every S seconds until interrupted.",
)
def show_command(
    context: CommandContext, job: str | None, explain: bool, refresh: float | None
) -> None:
    """Show what jobs may use, and what they use.

    Jobs are listed that have readers, are declared, or have a decision. With JOB, its readers are
    shown by node. WAITED is the share of the time in which a reader waits for its budget. SPEED is
    the ideal rate, with ≥ where only a lower bound is known, as its reads wait all the time. BY is
    the origin of a decision: hand, allocator or none; AGE is how old it is.

    --explain says which term of SiloD's estimate binds (a job's own speed, or remote IO), what one
    more GiB of cache or MiB/s of remote IO would bring, who has it instead, and what is cached but
    not effective yet.
    """
    from dieselfs.allocation.directory.directories import allocation_directory

    context = context.shared()
    output = context.output
    with closing(allocation_directory(context.config.index.value)) as directory:
        sample = partial(_sample, output, directory, job, explain)
        if refresh is None:
            _print(output, sample())
            return
        from rich.text import Text

        show_until_interrupted(
            output,
            _repeated(sample, refresh),
            partial(_print, output),
            lambda shown: Text("\n".join(shown.lines)),
        )


def _repeated(sample: partial[Shown], refresh_s: float) -> Iterator[Shown]:
    """Yield samples; while the directory does not answer, its error in their place."""
    while True:
        try:
            yield sample()
        except RegistryUnavailable as error:
            yield Shown([], [f"nothing is known now, and readers keep what they have: {error}"])
        time.sleep(refresh_s)


def _sample(
    output: Output, directory: AllocationDirectory, name: str | None, explain: bool
) -> Shown:
    from dieselfs.allocation.administration.overview import overview
    from dieselfs.allocation.administration.present_plan import explained

    jobs = overview(directory)
    why = explained(jobs) if explain else {}
    if name is None:
        return overview_shown(output, jobs, why if explain else None)
    found = next((job for job in jobs if job.name == name), None)
    if found is None:
        raise UsageError(
            f"no job {name!r} reads, is declared, or has a decision", "see `dlcmd alloc show`"
        )
    return one_job_shown(output, found, why if explain else None)


def _print(output: Output, shown: Shown) -> None:
    if output.json:
        for record in shown.records:
            output.record(record)
        return
    for line in shown.lines:
        output.line(line)
    for note in shown.notes:
        output.note(note)
