"""`dlcmd stats`: the statistics of a mount, live.

There are no files per second, since the kernel answers many reads itself and counts none.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from dieselfs.cli.command import command
from dieselfs.cli.command_context import CommandContext
from dieselfs.cli.rendering.output import Output
from dieselfs.cli.values.sizes import human_size
from dieselfs.errors import MountError

if TYPE_CHECKING:
    from rich.table import Table

    from dieselfs.fuse.mounts.mount_table import MountState

_TIMEOUT_S: Final = 5.0
_HEADINGS: Final = ("WHAT", "TOTAL", "PER SECOND")
_COUNTERS: Final = {
    "node memory hits": ("hits", "node_memory"),
    "node memory misses": ("hits", "misses"),
    "waits over 1 ms": ("waits_over_1_ms",),
    "chunks fetched": ("cache", "node", "fetches"),
    "chunks prefetched": ("cache", "node", "prefetched"),
    "prefetched chunks used": ("cache", "node", "prefetched_used"),
    "prefetched chunks wasted": ("cache", "node", "prefetched_wasted"),
    "chunks evicted": ("cache", "node", "evictions"),
    "reads that bypassed node memory": ("cache", "fallbacks"),
    "plan: late chunks": ("plan", "late"),
    "reads from peers": ("peers", "sources", "from_peers"),
    "reads from a second peer": ("peers", "sources", "from_second"),
    "reads from the store": ("peers", "sources", "from_store"),
    "SSD hits": ("ssd", "hits"),
    "SSD misses": ("ssd", "misses"),
    "reads that bypassed the SSD": ("ssd", "bypassed"),
    "chunks from cache nodes": ("cache_cluster", "chunks_from_nodes"),
    "files from cache nodes": ("cache_cluster", "files_from_nodes"),
    "files loaded into the page cache": ("page_cache", "filled", "filled_files"),
    "chunks prefilled after a miss": ("page_cache", "prefill", "fills"),
    "prefilled chunks wasted": ("page_cache", "prefill", "wasted"),
}
_RATED: Final = [
    ("bytes_read",),
    ("cache", "node", "fetched_bytes"),
    ("page_cache", "filled", "filled_bytes"),
    ("ssd", "hit_bytes"),
    ("ssd", "written_bytes"),
    *_COUNTERS.values(),
]


@dataclass(frozen=True, slots=True)
class Sample:
    """`stats.json` at one moment.

    A mount may be older than this program, or another user's: a value that is missing counts as 0.
    """

    document: Mapping[str, Any] = field(default_factory=dict)

    def number(self, *path: str) -> float:
        """Return the number at `path` in the document, or 0."""
        found: Any = self.document
        for name in path:
            found = found.get(name) if isinstance(found, Mapping) else None
        return found if isinstance(found, int | float) else 0

    def kinds(self) -> list[str]:
        """Return the kinds of requests that the mount counts."""
        requests = self.document.get("requests")
        return list(requests) if isinstance(requests, Mapping) else []

    def seconds_since(self, earlier: Sample) -> float:
        """Return the seconds since `earlier`, by the mount's own clock."""
        return max(self.number("uptime_s") - earlier.number("uptime_s"), 1e-3)

    def rate(self, earlier: Sample, *path: str) -> float:
        """Return the rate per second since `earlier`; `Sample()` is the beginning of the mount."""
        change = self.number(*path) - earlier.number(*path)
        return max(change, 0) / self.seconds_since(earlier)


@command(
    examples=[
        "dlcmd stats /mnt/imagenet",
        "dlcmd stats --once /mnt/imagenet",
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
def stats(context: CommandContext, mountpoint: str, interval: float | None, once: bool) -> None:
    """Show the statistics of a mount: requests, hits by tier, and the page-cache prefill.

    On a terminal they are updated until Ctrl-C, with rates since the last update. Otherwise they
    are printed once, with rates since the mount began. With --json they are printed once unless
    --interval is given.
    """
    output = context.output
    again = not once and (interval is not None if output.json else output.terminal)
    samples = _samples(mountpoint, interval or 1.0, again)
    if again:
        try:
            _print_repeatedly(output, mountpoint, samples)
        except KeyboardInterrupt:
            return
    else:
        [(sample, earlier)] = samples
        _print(output, mountpoint, sample, earlier)


def _print_repeatedly(
    output: Output, mountpoint: str, samples: Iterator[tuple[Sample, Sample]]
) -> None:
    if output.json:
        for sample, earlier in samples:
            _print(output, mountpoint, sample, earlier)
            sys.stdout.flush()
        return
    from rich.console import Console
    from rich.live import Live

    with Live(console=Console(no_color=not output.color), auto_refresh=False) as live:
        for sample, earlier in samples:
            live.update(_drawn(rows(sample, earlier, human=True)), refresh=True)


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
                raise _no_answer(path, info.state, MountState)
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


def _no_answer(path: Path, state: MountState, states: type[MountState]) -> MountError:
    if state is states.DEAD:
        return MountError(f"the daemon of {path} is gone", f"unmount it: dlcmd umount {path}")
    if state is states.PRIVATE:
        return MountError(f"{path} is another user's mount", "run the command as that user")
    if state is states.LOCAL:
        return MountError(
            f"{path} is a local mount: the kernel serves it from the SSD, without statistics",
            "see `dlcmd mounts --json` for its snapshot, and iostat for the disk",
        )
    return MountError(
        f"the mount at {path} does not answer, or its answer is not valid",
        f"see its log, or detach it: dlcmd umount --lazy {path}",
    )


def _print(output: Output, mountpoint: str, sample: Sample, earlier: Sample) -> None:
    if output.json:
        output.record(
            {"mountpoint": mountpoint, **sample.document, "rates": _rates(sample, earlier)}
        )
    else:
        output.table(_HEADINGS, rows(sample, earlier, human=output.terminal))


def _rates(sample: Sample, earlier: Sample) -> dict[str, Any]:
    rates: dict[str, Any] = {
        "interval_s": round(sample.seconds_since(earlier), 3),
        "requests": {kind: _rounded(sample, earlier, "requests", kind) for kind in sample.kinds()},
    }
    return rates | {".".join(path): _rounded(sample, earlier, *path) for path in _RATED}


def _rounded(sample: Sample, earlier: Sample, *path: str) -> float:
    return round(sample.rate(earlier, *path), 3)


def rows(sample: Sample, earlier: Sample, *, human: bool) -> list[tuple[str, str, str]]:
    """Return the rows for people: name, total, and rate per second."""

    def counter(name: str, *path: str) -> tuple[str, str, str]:
        return name, f"{sample.number(*path):,.0f}", f"{sample.rate(earlier, *path):,.1f}"

    def size(size_bytes: float) -> str:
        return human_size(size_bytes) if human else f"{size_bytes:.0f}"

    def volume(name: str, *path: str) -> tuple[str, str, str]:
        return name, size(sample.number(*path)), f"{size(sample.rate(earlier, *path))}/s"

    def cached(name: str, now: tuple[str, ...], budget: tuple[str, ...]) -> tuple[str, str, str]:
        return name, f"{size(sample.number(*now))} of {size(sample.number(*budget))}", ""

    node_memory = cached(
        "node memory", ("cache", "node", "cached_bytes"), ("cache", "node", "budget_bytes")
    )
    outstanding = cached(
        "prefilled, not read yet",
        ("page_cache", "prefill", "outstanding_bytes"),
        ("page_cache", "prefill", "budget_bytes"),
    )
    return [
        ("uptime", f"{sample.number('uptime_s'):,.0f} s", ""),
        ("front", _front(sample), ""),
        *(counter(f"request {kind}", "requests", kind) for kind in sample.kinds()),
        volume("bytes read", "bytes_read"),
        *(counter(name, *path) for name, path in _COUNTERS.items()),
        volume("bytes fetched", "cache", "node", "fetched_bytes"),
        volume("bytes loaded into the page cache", "page_cache", "filled", "filled_bytes"),
        outstanding,
        node_memory,
        ("peers", _peers(sample), ""),
        volume("bytes written to the SSD", "ssd", "written_bytes"),
        ("SSD tier", _ssd(sample), ""),
        *_warm_up(sample, size),
        ("cache nodes", _cache_cluster(sample), ""),
        ("plan: position", _position(sample), ""),
        ("plan: window", size(sample.number("plan", "window_bytes")), ""),
    ]


def _position(sample: Sample) -> str:
    files = sample.number("plan", "files")
    return f"{sample.number('plan', 'position'):,.0f} of {files:,.0f}" if files else "no plan"


def _peers(sample: Sample) -> str:
    known = sample.document.get("peers")
    if not isinstance(known, Mapping):
        return "none"
    up = f"{sample.number('peers', 'members_up'):.0f} of {sample.number('peers', 'members'):.0f} up"
    trouble = known.get("trouble")
    return f"{up}; {trouble}" if trouble else up


def _ssd(sample: Sample) -> str:
    known = sample.document.get("ssd")
    if not isinstance(known, Mapping):
        return "none"
    if known.get("in_service"):
        return "in service"
    return f"out of service: {known.get('reason') or 'not open yet'}"


def _warm_up(sample: Sample, size: Callable[[float], str]) -> list[tuple[str, str, str]]:
    """Return the row of the SSD warm-up, or no row if none was asked for."""
    ssd = sample.document.get("ssd")
    known = ssd.get("warmup") if isinstance(ssd, Mapping) else None
    if not isinstance(known, Mapping):
        return []
    cached, all_ = (size(sample.number("ssd", "warmup", key)) for key in ("cached_bytes", "bytes"))
    return [("SSD warm-up", f"{known.get('state')}; {cached} of {all_}", "")]


def _cache_cluster(sample: Sample) -> str:
    if not isinstance(sample.document.get("cache_cluster"), Mapping):
        return "none"
    return (
        f"{sample.number('cache_cluster', 'nodes_up'):.0f} of "
        f"{sample.number('cache_cluster', 'nodes'):.0f} up"
    )


def _front(sample: Sample) -> str:
    known = sample.document.get("front")
    if not isinstance(known, Mapping):
        return "unknown"
    return f"{known.get('kind')}, {known.get('reason')}"


def _drawn(lines: list[tuple[str, str, str]]) -> Table:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False)
    for heading in _HEADINGS:
        table.add_column(heading, justify="left" if heading == "WHAT" else "right")
    for line in lines:
        table.add_row(*map(Text, line))
    return table
