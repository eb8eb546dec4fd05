"""`dlcmd alloc plan`: what a policy gives to each job of a table, and why."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import click

from dieselfs.cli.arguments.cluster_resources import cluster_options, policy_option, resources_of
from dieselfs.cli.command import command
from dieselfs.cli.command_context import CommandContext


@command(
    name="plan",
    examples=[
        "dlcmd alloc plan jobs.csv --cache 2TiB --remote-io 200MB/s",
        "dlcmd alloc plan jobs.csv --policy sjf --gpus 8 --cache 2TiB --remote-io 4GB/s --explain",
        "dlcmd alloc plan jobs.csv --system quiver --cache 2TiB --remote-io 200MB/s --json",
    ],
)
@click.argument("table", type=click.Path(path_type=Path), metavar="JOBS.csv")
@policy_option
@click.option(
    "--system",
    metavar="NAME",
    help="Whose cache: silod, algorithm-2, quiver, coordl or alluxio (default: silod).",
)
@cluster_options
@click.option("--explain", is_flag=True, help="Say of each job what limits it, and why.")
def plan_command(
    context: CommandContext,
    table: Path,
    policy: str,
    system: str | None,
    cache: int | None,
    remote_io: str | None,
    gpus: int | None,
    explain: bool,
) -> None:
    """Show what a policy gives to the jobs of a table: GPUs, cache, remote IO, and the speed.

    JOBS.csv has a line for each job, and the columns job, dataset, dataset_bytes,
    speed_bytes_per_s, gpus, passes, submitted_s and regular; repeats_items and order may be added.
    Sizes and rates may have units. The jobs are listed in the order in which they run. Cache,
    remote IO and speed are those after the first epochs, when the cache is effective. Nothing is
    changed anywhere.

    greedy is SiloD's Algorithm 2, as printed: cache by efficiency, then remote IO max-min. The
    other policies order the jobs, and give cache only for bytes that are read again.
    """
    from dieselfs.allocation.explanation import explain as explained
    from dieselfs.allocation.job_table import read_job_table
    from dieselfs.allocation.plan import make_plan
    from dieselfs.allocation.policies.naming import SILOD, named_policy
    from dieselfs.cli.rendering.allocation_plan import print_plan

    chosen = named_policy(policy, system)
    jobs = read_job_table(table)
    if system not in (None, *SILOD):
        jobs = [replace(job, order="random") for job in jobs]
    total = resources_of(jobs, cache, remote_io, gpus)
    found = explained(make_plan(jobs, chosen, total))
    print_plan(context.output, found, total, in_words=explain)
