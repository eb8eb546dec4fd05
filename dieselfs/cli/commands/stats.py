"""`dlcmd stats`: the statistics of a mount, live."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Final

import click

from dieselfs.cli.command import command
from dieselfs.cli.command_context import CommandContext
from dieselfs.cli.rendering.live import show_until_interrupted
from dieselfs.cli.rendering.mount_statistics import HEADINGS, Sample, rates, rows, summary
from dieselfs.cli.rendering.output import Output, printable
from dieselfs.errors import MountError, UsageError

if TYPE_CHECKING:
    from rich.console import RenderableType

    from dieselfs.fuse.mounts.mount_table import MountState

_TIMEOUT_S: Final = 5.0
_LABEL_WIDTH: Final = 12


@command(
    examples=[
        "dlcmd stats /mnt/imagenet",
        "dlcmd stats --once --all /mnt/imagenet",
        "dlcmd stats --json --interval 10 /mnt/imagenet",
    ]
)
@click.argument("mountpoint")
@click.option(
    "--interval",
    type=click.FloatRange(min=0.1),
    metavar="S",
    help="Seconds between updates (default: 1).",
)
@click.option("--once", is_flag=True, help="Print once, and end.")
@click.option("--all", "every", is_flag=True, help="Show every counter, not twelve lines.")
def stats(
    context: CommandContext, mountpoint: str, interval: float | None, once: bool, every: bool
) -> None:
    """Show what a mount does: rates, where reads came from, waits, errors, plan and memory.

    On a terminal, or with --interval, they are updated until Ctrl-C, with rates since the last
    update. Otherwise, and with --json, they are printed once, with rates since the mount began.
    """
    output = context.output
    if once and interval is not None:
        raise UsageError("--interval repeats, and --once prints once", "leave out one of them")
    again = not once and (interval is not None or (output.terminal and not output.json))
    samples = _samples(mountpoint, interval or 1.0, again)
    if again:
        show_until_interrupted(
            output,
            samples,
            lambda pair: _print(output, mountpoint, *pair, every),
            lambda pair: _drawn(*pair, every),
        )
    else:
        [(sample, earlier)] = samples
        _print(output, mountpoint, sample, earlier, every)


def _samples(mountpoint: str, interval_s: float, again: bool) -> Iterator[tuple[Sample, Sample]]:
    """Yield each sample and the one before it, for ever or once.

    Raises `MountError` once the mount does not answer.
    """
    from dieselfs.fuse.mounts.control_names import STATISTICS_NAME
    from dieselfs.fuse.mounts.mount_table import MountState, ask, entry_at, read_document
    from dieselfs.fuse.mounts.mountpoint import resolve

    path = resolve(Path(mountpoint))
    mount = entry_at(path)
    if mount is None or not mount.is_dieselfs:
        raise MountError(f"no DieselFS mount at {path}", "`dlcmd mounts` lists them")
    earlier = Sample()
    while True:
        state, document = read_document(mount.mountpoint, STATISTICS_NAME, _TIMEOUT_S)
        now = entry_at(path)
        if now is None or not now.is_dieselfs:
            raise MountError(f"{path} was unmounted meanwhile", "`dlcmd mounts` lists the mounts")
        if document is None:
            # Ask again, since a new server may be taking over just now.
            [info] = ask([now], _TIMEOUT_S)
            if info.state is not MountState.SERVING or state is MountState.HUNG:
                raise _no_answer(path, info.state)
            mount = now
            continue
        if now != mount:
            mount, earlier = now, Sample()  # after a refresh, another server counts
        sample = Sample(document)
        yield sample, earlier
        if not again:
            return
        earlier = sample
        time.sleep(interval_s)


def _no_answer(path: Path, state: MountState) -> MountError:
    from dieselfs.fuse.mounts.mount_table import MountState

    what, hint = {
        MountState.DEAD: (
            f"the daemon of {path} is gone",
            f"unmount it: dlcmd umount {quote(str(path))}",
        ),
        MountState.PRIVATE: (f"{path} is another user's mount", "run the command as that user"),
        MountState.LOCAL: (
            f"{path} is a local mount: the kernel serves it from the SSD, without statistics",
            "see `dlcmd mounts --json` for its snapshot, and iostat for the disk",
        ),
    }.get(
        state,
        (
            f"the mount at {path} does not answer, or its answer is not valid",
            f"see its log, or detach it: dlcmd umount --lazy {quote(str(path))}",
        ),
    )
    return MountError(what, hint)


def _print(output: Output, mountpoint: str, sample: Sample, earlier: Sample, every: bool) -> None:
    if output.json:
        record = {"mountpoint": mountpoint, **sample.document, "rates": rates(sample, earlier)}
        output.record(record)
    elif every:
        output.table(HEADINGS, rows(sample, earlier, human=output.terminal))
    else:
        for label, text in summary(sample, earlier, human=output.terminal):
            output.line(f"{label:<{_LABEL_WIDTH}}{printable(text)}")


def _drawn(sample: Sample, earlier: Sample, every: bool) -> RenderableType:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, show_header=every)
    if not every:
        table.add_column(min_width=_LABEL_WIDTH - 1)
        table.add_column(no_wrap=True, overflow="ellipsis")
        for label, text in summary(sample, earlier, human=True):
            table.add_row(Text(label), Text(printable(text)))
        return table
    for heading in HEADINGS:
        table.add_column(heading, justify="left" if heading == "WHAT" else "right")
    for line in rows(sample, earlier, human=True):
        table.add_row(*map(Text, line))
    return table
