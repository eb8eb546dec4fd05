"""`dlcmd alloc simulate`: the jobs of a trace from their submission to their end."""

from __future__ import annotations

from pathlib import Path

import click

from dieselfs.cli.arguments.cluster_resources import cluster_options, resources_of
from dieselfs.cli.command import command
from dieselfs.cli.command_context import CommandContext
from dieselfs.errors import UsageError


@command(
    name="simulate",
    examples=[
        "dlcmd alloc simulate trace.csv --cache 2TiB --remote-io 200MB/s",
        "dlcmd alloc simulate trace.csv --system alluxio --order sjf --gpus 96 --cache 12TB "
        "--remote-io 1GB/s --plot alluxio.svg",
        "dlcmd alloc simulate trace.csv --cache 2TiB --remote-io 200MB/s --grain items --json",
    ],
)
@click.argument("trace", type=click.Path(path_type=Path), metavar="TRACE.csv")
@click.option(
    "--system",
    metavar="NAME",
    default="silod",
    show_default=True,
    help="Whose cache: silod, algorithm-2, quiver, coordl or alluxio.",
)
@click.option(
    "--order", metavar="NAME", default="fifo", show_default=True, help="fifo, sjf or max-min."
)
@cluster_options
@click.option(
    "--grain",
    type=click.Choice(["fluid", "items"]),
    default="fluid",
    show_default=True,
    help="What is counted: bytes, for clusters, or single items in a real cache.",
)
@click.option(
    "--seed", type=int, default=1, show_default=True, help="Draws the orders of single items."
)
@click.option("--plot", metavar="FILE.svg", help="Draw rates and cache over time.")
def simulate_command(
    context: CommandContext,
    trace: Path,
    system: str,
    order: str,
    cache: int | None,
    remote_io: str | None,
    gpus: int | None,
    grain: str,
    seed: int,
    plot: str | None,
) -> None:
    """Simulate the jobs of a trace: how long they wait and run, and what the cluster does.

    TRACE.csv has the columns of a table for `dlcmd alloc plan`. Jobs are submitted at submitted_s,
    wait for GPUs in the order, and end when they have read their dataset passes times. What a job
    caches in one epoch is effective in the next one. The same command gives the same result.

    Times are exact to a minute: within it the allocation stays as it is.
    """
    from dieselfs.allocation.job_table import read_job_table
    from dieselfs.allocation.policies.naming import policy_of
    from dieselfs.allocation.simulation.simulator import Grain, simulate
    from dieselfs.cli.rendering.simulation_report import print_outcome, write_plot

    policy = policy_of(order, system)
    jobs = read_job_table(trace)
    total = resources_of(jobs, cache, remote_io, gpus)
    if not total.io_bytes_per_s:
        raise UsageError(f"--remote-io of {remote_io}", "write for instance 200MB/s")
    found = simulate(jobs, policy, total, grain=Grain(grain), seed=seed)
    if plot is not None:
        write_plot(Path(plot), found)
    print_outcome(context.output, found, {"system": system, "order": order})
