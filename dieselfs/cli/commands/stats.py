"""`dlcmd stats`: the statistics of a mount, live.

There are no files per second, since the kernel answers many reads itself and counts none.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from dieselfs.cli.command import command
from dieselfs.cli.command_context import CommandContext
from dieselfs.cli.rendering.live import show_until_interrupted
from dieselfs.cli.rendering.output import Output
from dieselfs.cli.values.sizes import human_size
from dieselfs.errors import MountError

if TYPE_CHECKING:
    from rich.table import Table

    from dieselfs.fuse.mounts.mount_table import MountState

_TIMEOUT_S: Final = 5.0
_HEADINGS: Final = ("WHAT", "TOTAL", "PER SECOND")
_COUNTERS: Final = {
    "node memory hits": "hits.node_memory",
    "node memory misses": "hits.misses",
    "waits over 1 ms": "waits_over_1_ms",
    "chunks fetched": "cache.node.fetches",
    "chunks prefetched": "cache.node.prefetched",
    "prefetched chunks used": "cache.node.prefetched_used",
    "prefetched chunks wasted": "cache.node.prefetched_wasted",
    "chunks evicted": "cache.node.evictions",
    "reads that bypassed node memory": "cache.fallbacks",
    "plan: late chunks": "plan.late",
    "reads from peers": "peers.sources.from_peers",
    "reads from a second peer": "peers.sources.from_second",
    "reads from the store": "peers.sources.from_store",
    "SSD hits": "ssd.hits",
    "SSD misses": "ssd.misses",
    "reads that bypassed the SSD": "ssd.bypassed",
    "chunks from cache nodes": "cache_cluster.chunks_from_nodes",
    "files from cache nodes": "cache_cluster.files_from_nodes",
    "files loaded into the page cache": "page_cache.filled.filled_files",
    "chunks prefilled after a miss": "page_cache.prefill.fills",
    "prefilled chunks wasted": "page_cache.prefill.wasted",
}
"""The counters of `stats.json`, by the names that people see."""
_VOLUMES: Final = {
    "bytes read": "bytes_read",
    "bytes fetched": "cache.node.fetched_bytes",
    "bytes loaded into the page cache": "page_cache.filled.filled_bytes",
    "SSD bytes that hit": "ssd.hit_bytes",
    "bytes written to the SSD": "ssd.written_bytes",
}
"""The counters of bytes."""


@dataclass(frozen=True, slots=True)
class Sample:
    """`stats.json` at one moment.

    A mount may be older than this program, or another user's: a value that is missing counts as 0.
    """

    document: Mapping[str, Any] = field(default_factory=dict)

    def found(self, path: str) -> Any:
        """Return what is at `path`, the names of keys joined by dots; None if nothing is there."""
        found: Any = self.document
        for name in path.split("."):
            found = found.get(name) if isinstance(found, Mapping) else None
        return found

    def number(self, path: str) -> float:
        """Return the number at `path` in the document, or 0."""
        found = self.found(path)
        return found if isinstance(found, int | float) else 0

    def part(self, path: str) -> Mapping[str, Any]:
        """Return the object at `path`; an empty one if there is none."""
        found = self.found(path)
        return found if isinstance(found, Mapping) else {}

    def kinds(self) -> list[str]:
        """Return the kinds of requests that the mount counts."""
        return list(self.part("requests"))

    def seconds_since(self, earlier: Sample) -> float:
        """Return the seconds since `earlier`, by the mount's own clock."""
        return max(self.number("uptime_s") - earlier.number("uptime_s"), 1e-3)

    def rate(self, earlier: Sample, path: str) -> float:
        """Return the rate per second since `earlier`; `Sample()` is the beginning of the mount."""
        change = self.number(path) - earlier.number(path)
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
        show_until_interrupted(
            output,
            samples,
            lambda pair: _print(output, mountpoint, *pair),
            lambda pair: _drawn(rows(*pair, human=True)),
        )
    else:
        [(sample, earlier)] = samples
        _print(output, mountpoint, sample, earlier)


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
        MountState.DEAD: (f"the daemon of {path} is gone", f"unmount it: dlcmd umount {path}"),
        MountState.PRIVATE: (f"{path} is another user's mount", "run the command as that user"),
        MountState.LOCAL: (
            f"{path} is a local mount: the kernel serves it from the SSD, without statistics",
            "see `dlcmd mounts --json` for its snapshot, and iostat for the disk",
        ),
    }.get(
        state,
        (
            f"the mount at {path} does not answer, or its answer is not valid",
            f"see its log, or detach it: dlcmd umount --lazy {path}",
        ),
    )
    return MountError(what, hint)


def _print(output: Output, mountpoint: str, sample: Sample, earlier: Sample) -> None:
    record = {"mountpoint": mountpoint, **sample.document, "rates": _rates(sample, earlier)}
    output.listing(_HEADINGS, rows(sample, earlier, human=output.terminal), [record])


def _rates(sample: Sample, earlier: Sample) -> dict[str, Any]:
    def rate(path: str) -> float:
        return round(sample.rate(earlier, path), 3)

    return {
        "interval_s": round(sample.seconds_since(earlier), 3),
        "requests": {kind: rate(f"requests.{kind}") for kind in sample.kinds()},
        **{path: rate(path) for path in (*_VOLUMES.values(), *_COUNTERS.values())},
    }


def rows(sample: Sample, earlier: Sample, *, human: bool) -> list[tuple[str, str, str]]:
    """Return the rows for people: name, total, and rate per second."""

    def counter(name: str, path: str) -> tuple[str, str, str]:
        return name, f"{sample.number(path):,.0f}", f"{sample.rate(earlier, path):,.1f}"

    def size(size_bytes: float) -> str:
        return human_size(size_bytes) if human else f"{size_bytes:.0f}"

    def volume(name: str) -> tuple[str, str, str]:
        path = _VOLUMES[name]
        return name, size(sample.number(path)), f"{size(sample.rate(earlier, path))}/s"

    def part(path: str, now: str, most: str = "budget_bytes") -> str:
        return f"{size(sample.number(f'{path}.{now}'))} of {size(sample.number(f'{path}.{most}'))}"

    front, warm_up = sample.part("front"), sample.part("ssd.warmup")
    loaded = part("ssd.warmup", "cached_bytes", "bytes")
    outstanding = part("page_cache.prefill", "outstanding_bytes")
    return [
        ("uptime", f"{sample.number('uptime_s'):,.0f} s", ""),
        ("front", f"{front.get('kind')}, {front.get('reason')}" if front else "unknown", ""),
        *(counter(f"request {kind}", f"requests.{kind}") for kind in sample.kinds()),
        volume("bytes read"),
        *(counter(name, path) for name, path in _COUNTERS.items()),
        volume("bytes fetched"),
        volume("bytes loaded into the page cache"),
        ("prefilled, not read yet", outstanding, ""),
        ("node memory", part("cache.node", "cached_bytes"), ""),
        ("peers", _peers(sample), ""),
        volume("bytes written to the SSD"),
        ("SSD tier", _ssd(sample.part("ssd")), ""),
        *([("SSD warm-up", f"{warm_up.get('state')}; {loaded}", "")] if warm_up else []),
        ("cache nodes", _up(sample, "cache_cluster", "nodes"), ""),
        ("plan: position", _position(sample), ""),
        ("plan: window", size(sample.number("plan.window_bytes")), ""),
    ]


def _position(sample: Sample) -> str:
    files = sample.number("plan.files")
    return f"{sample.number('plan.position'):,.0f} of {files:,.0f}" if files else "no plan"


def _up(sample: Sample, part: str, what: str) -> str:
    if not sample.part(part):
        return "none"
    up, known = sample.number(f"{part}.{what}_up"), sample.number(f"{part}.{what}")
    return f"{up:.0f} of {known:.0f} up"


def _peers(sample: Sample) -> str:
    up, trouble = _up(sample, "peers", "members"), sample.found("peers.trouble")
    return f"{up}; {trouble}" if trouble else up


def _ssd(known: Mapping[str, Any]) -> str:
    if not known:
        return "none"
    if known.get("in_service"):
        return "in service"
    return f"out of service: {known.get('reason') or 'not open yet'}"


def _drawn(lines: list[tuple[str, str, str]]) -> Table:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False)
    for heading in _HEADINGS:
        table.add_column(heading, justify="left" if heading == "WHAT" else "right")
    for line in lines:
        table.add_row(*map(Text, line))
    return table
