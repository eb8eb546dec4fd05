"""`dlcmd advise`: what an SSD tier would save, by recorded traces or figures of devices."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from dieselfs.cli.command import command, size_option
from dieselfs.cli.command_context import CommandContext
from dieselfs.cli.values.percentages import ShareOrNone
from dieselfs.errors import UsageError

if TYPE_CHECKING:
    from dieselfs.cache.advice.tier_comparison import Question


@command(
    examples=[
        "dlcmd advise /var/tmp/imagenet.trace",
        "dlcmd advise /var/tmp/imagenet.trace* --ssd-size 200GiB,400GiB,800GiB --plot advice.svg",
        "dlcmd advise node1.trace node2.trace --policy lru,future --write-budget 100MB/s --json",
        "dlcmd advise --power",
        "dlcmd advise --power --absorbed 36%",
        "dlcmd advise --power --storage 400TB --io 20GB/s --absorbed 70% "
        "--hdd-device capacity=20TB,io=150MB/s,watts=9 --ssd-device capacity=8TB,io=5GB/s,watts=15",
    ]
)
@click.argument("traces", nargs=-1, metavar="[TRACE]…")
@click.option(
    "--ssd-size",
    metavar="SIZE,…",
    help="Sizes of the SSD (default: five, up to all bytes that were read).",
)
@click.option("--policy", metavar="NAME,…", help="Cache policies, lru or fifo (default: all).")
@click.option(
    "--region-size",
    metavar="SIZE,…",
    help="What the SSD evicts at once (default: as an SSD tier of the size); none: one chunk.",
)
@click.option("--write-budget", metavar="RATE", help="Bytes a second that policies may write.")
@click.option("--plot", metavar="FILE.svg", help="Draw the absorbed share by size.")
@click.option("--power", is_flag=True, help="Compare the power of HDDs and an SSD tier.")
@size_option("--storage", help_text="With --power: bytes on the HDDs, copies included.")
@click.option(
    "--io", metavar="RATE", help="With --power: IO of all readers, 10GB/s, or requests a second."
)
@click.option(
    "--absorbed",
    type=ShareOrNone(),
    metavar="SHARE",
    help="With --power: IO that the tier absorbs (default: what HDDs for --storage leave).",
)
@size_option("--tier-size", help_text="With --power: size of the SSD tier, at least.")
@click.option(
    "--hdd-device",
    metavar="FIGURES",
    help="With --power: capacity=20TB,io=150MB/s,watts=9[,cost=300] of one HDD or server.",
)
@click.option(
    "--ssd-device", metavar="FIGURES", help="With --power: the same of one SSD or server."
)
def advise(
    context: CommandContext,
    traces: Sequence[str],
    ssd_size: str | None,
    policy: str | None,
    region_size: str | None,
    write_budget: str | None,
    plot: str | None,
    power: bool,
    storage: int | None,
    io: str | None,
    absorbed: float | None,
    tier_size: int | None,
    hdd_device: str | None,
    ssd_device: str | None,
) -> None:
    """Say what an SSD tier saves.

    Traces of `dlcmd mount --record-trace` or `dlcmd serve --record-trace` are replayed through the
    cache policies: which share of the reads an SSD of each size and policy would absorb, beside the
    optimum, and which size is worth it. Several traces are one, by time.

    --power computes the power, and the cost where prices are given, of HDDs alone, SSDs alone, and
    HDDs whose IO an SSD tier absorbs in part. Without figures of devices it computes Table 1 of
    Tectonic-Shift.
    """
    of_traces = (ssd_size, policy, region_size, write_budget, plot)
    of_power = (storage, io, absorbed, tier_size, hdd_device, ssd_device)
    if not traces and not power:
        raise UsageError("nothing to advise on", "name traces of --record-trace, or add --power")
    others = (traces or None, *of_traces) if power else of_power
    if any(other is not None for other in others):
        raise UsageError(
            "traces and --power are different questions, each with options of its own",
            "see `dlcmd advise --help`",
        )
    if traces:
        question = _question(ssd_size, policy, region_size, write_budget)
        _advise_by_traces(context, traces, question, plot)
        return
    from dieselfs.cli.rendering.power_table import PowerRequest, print_power

    print_power(
        context.output, PowerRequest(storage, io, hdd_device, ssd_device, absorbed, tier_size)
    )


def _question(
    sizes: str | None, policies: str | None, regions: str | None, write_budget: str | None
) -> Question:
    from dieselfs.cache.advice.tier_comparison import Question
    from dieselfs.cli.values.sizes import parse_rate, parse_size

    budget = None if write_budget is None else parse_rate(write_budget)
    if budget == 0:
        raise UsageError("--write-budget of 0", "write for instance 100MB/s")
    return Question(
        [parse_size(part) for part in _parts("--ssd-size", sizes)],
        _parts("--policy", policies),
        [0 if part == "none" else _region(part) for part in _parts("--region-size", regions)]
        or (None,),
        budget,
    )


def _region(text: str) -> int:
    from dieselfs.cli.values.sizes import parse_size

    size = parse_size(text)
    if size == 0:
        raise UsageError("--region-size of 0", "write none for single chunks")
    return size


def _parts(option: str, text: str | None) -> list[str]:
    parts = [] if text is None else [part.strip() for part in text.split(",") if part.strip()]
    if text is not None and not parts:
        raise UsageError(f"{option} is empty", "leave it out, or name values with commas")
    return parts


def _advise_by_traces(
    context: CommandContext, names: Sequence[str], question: Question, plot: str | None
) -> None:
    from dieselfs.cache.advice.merged_traces import merged
    from dieselfs.cache.advice.tier_comparison import compare, requests_of
    from dieselfs.cache.advice.trace_file import read_trace
    from dieselfs.cli.rendering.advice_table import print_advice, write_plot

    files = [read_trace(Path(name)) for name in names]
    for file in files:
        if file.is_cut:
            context.output.note(f"{file.path} was cut off; it is read up to there")
    trace = merged(files)
    with context.progress("replaying", "requests") as progress:
        progress.expect(requests_of(trace, question), 0)
        found = compare(trace, question, lambda requests: progress.advance(requests, 0))
    if plot is not None:
        write_plot(Path(plot), found)
    print_advice(context.output, trace, found)
