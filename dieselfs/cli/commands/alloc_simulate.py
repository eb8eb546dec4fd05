"""`dlcmd alloc simulate`: the jobs of a trace from their submission to their end."""

from __future__ import annotations

import math
from pathlib import Path

import click

from dieselfs.cli.command import command, size_option
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
@size_option("--cache", help_text="The cache of the whole cluster.")
@click.option("--remote-io", metavar="RATE", help="What the store gives to the whole cluster.")
@click.option(
    "--gpus",
    type=click.IntRange(1),
    metavar="N",
    help="GPUs of the cluster (default: enough for all jobs).",
)
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
    from dieselfs.allocation.job_table import byte_rate, read_job_table
    from dieselfs.allocation.jobs import Resources
    from dieselfs.allocation.policies.naming import policy_of
    from dieselfs.allocation.simulation.simulator import Grain, simulate
    from dieselfs.cli.rendering.simulation_report import print_outcome, write_plot

    if cache is None or remote_io is None:
        missing = "--cache" if cache is None else "--remote-io"
        raise UsageError(f"{missing} is not given", "say what is to be divided")
    policy = policy_of(order, system)
    io = byte_rate("--remote-io", remote_io)
    if not 0 < io < math.inf:
        raise UsageError(f"--remote-io of {remote_io}", "write for instance 200MB/s")
    jobs = read_job_table(trace)
    total = Resources(gpus or sum(job.gpus for job in jobs), cache, io)
    found = simulate(jobs, policy, total, grain=Grain(grain), seed=seed)
    if plot is not None:
        write_plot(Path(plot), found)
    print_outcome(context.output, found, {"system": system, "order": order})
