"""`dlcmd advise`: what an SSD tier would save, from figures of devices."""

from __future__ import annotations

import click

from dieselfs.cli.command import command, size_option
from dieselfs.cli.command_context import CommandContext
from dieselfs.cli.values.percentages import ShareOrNone
from dieselfs.errors import UsageError


@command(
    examples=[
        "dlcmd advise --power",
        "dlcmd advise --power --absorbed 36%",
        "dlcmd advise --power --storage 400TB --io 20GB/s --absorbed 70% "
        "--hdd-device capacity=20TB,io=150MB/s,watts=9 --ssd-device capacity=8TB,io=5GB/s,watts=15",
    ]
)
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
    power: bool,
    storage: int | None,
    io: str | None,
    absorbed: float | None,
    tier_size: int | None,
    hdd_device: str | None,
    ssd_device: str | None,
) -> None:
    """Say what an SSD tier in front of HDDs saves.

    --power computes the power, and the cost where prices are given, of HDDs alone, SSDs alone, and
    HDDs whose IO an SSD tier absorbs in part. Without figures of devices it computes Table 1 of
    Tectonic-Shift.
    """
    if not power:
        raise UsageError("nothing to advise on", "add --power")
    from dieselfs.cli.rendering.power_table import PowerRequest, print_power

    print_power(
        context.output, PowerRequest(storage, io, hdd_device, ssd_device, absorbed, tier_size)
    )
