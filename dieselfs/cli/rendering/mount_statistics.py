"""The statistics of a mount as `dlcmd stats` shows them: twelve lines, or all counters.

The names of the counters are those that people see; `stats.json` has them by its own keys.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from chunkstore.counted import counted
from dieselfs.cli.values.durations import human_duration
from dieselfs.cli.values.sizes import human_size

HEADINGS: Final = ("WHAT", "TOTAL", "PER SECOND")
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
    "reads from the store": "store.hedge.reads",
    "reads from the store tried again": "store.retry.retries",
    "reads that failed": "failed_reads.total",
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
_FORMER_RATES: Final = ("peers.sources.from_store",)
"""Rates that only the JSON output has; the first row of this name counted with peers alone."""
_ANSWERS: Final = {"node memory": ("hits.node_memory",), "missed": ("hits.misses",)}
"""Counters of READs by whether node memory answered them."""
_SOURCES: Final = {
    "SSD": ("ssd.hits",),
    "peers": ("peers.sources.from_peers", "peers.sources.from_second"),
    "cache nodes": ("cache_cluster.chunks_from_nodes", "cache_cluster.files_from_nodes"),
    "store": ("store.hedge.reads",),
}
"""Counters of reads by the tier below node memory that answered them."""


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

    def change(self, earlier: Sample, *paths: str) -> float:
        """Return what the numbers at these paths have grown by since `earlier`, together."""
        return sum(max(self.number(path) - earlier.number(path), 0) for path in paths)

    def rate(self, earlier: Sample, path: str) -> float:
        """Return the rate per second since `earlier`; `Sample()` is the beginning of the mount."""
        return self.change(earlier, path) / self.seconds_since(earlier)


def rates(sample: Sample, earlier: Sample) -> dict[str, Any]:
    """Return the rates of the JSON output."""

    def rate(path: str) -> float:
        return round(sample.rate(earlier, path), 3)

    return {
        "interval_s": round(sample.seconds_since(earlier), 3),
        "requests": {kind: rate(f"requests.{kind}") for kind in sample.kinds()},
        **{path: rate(path) for path in (*_VOLUMES.values(), *_COUNTERS.values(), *_FORMER_RATES)},
    }


def summary(sample: Sample, earlier: Sample, *, human: bool) -> list[tuple[str, str]]:
    """Return twelve lines for people, each of a subject: rates and shares since `earlier`.

    They fit a terminal of 80 columns.
    """

    def size(size_bytes: float) -> str:
        return human_size(size_bytes) if human else f"{size_bytes:.0f}"

    def count(path: str, noun: str) -> str:
        return counted(round(sample.number(path)), noun)

    def volume(path: str) -> str:
        return f"{size(sample.rate(earlier, path))}/s"

    def part(path: str, now: str) -> str:
        budget = size(sample.number(f"{path}.budget_bytes"))
        return f"{size(sample.number(f'{path}.{now}'))} of {budget}"

    requests = sample.rate(earlier, "requests.read")
    waits = sample.rate(earlier, "waits_over_1_ms")
    lines = {
        "mount": f"{_front(sample)}, up {human_duration(sample.number('uptime_s'))}",
        "files": _files(sample, earlier),
        "read": f"{volume('bytes_read')}, {requests:,.1f} READs/s, "
        f"{size(sample.number('bytes_read'))} in all",
        "from": _shares(sample, earlier, _ANSWERS) or "no reads",
        "fetched": f"{volume('cache.node.fetched_bytes')}: "
        f"{_shares(sample, earlier, _SOURCES) or 'nothing yet'}",
        "waits": f"{count('waits_over_1_ms', 'READ')} over 1 ms, {waits:,.1f}/s; "
        f"{sample.number('waited_s'):,.1f} s in all",
        "errors": _errors(sample),
        "plan": _plan(sample, size),
        "memory": f"{part('cache.node', 'cached_bytes')}; {count('cache.node.evictions', 'chunk')} "
        f"evicted, {count('cache.fallbacks', 'bypass')}",
        "page cache": f"{count('page_cache.filled.filled_files', 'file')} loaded, "
        f"{part('page_cache.prefill', 'outstanding_bytes')} not read yet",
        "SSD": _ssd_summary(sample, earlier, size),
        "peers": f"{_peers(sample)}; cache nodes: {_up(sample, 'cache_cluster', 'nodes')}",
    }
    return list(lines.items())


def _front(sample: Sample) -> str:
    front = sample.part("front")
    return f"{front.get('kind')}, {front.get('reason')}" if front else "unknown"


def _files(sample: Sample, earlier: Sample) -> str:
    """Return the rate of files: along the plan, which is what readers read, or else loaded ones.

    The kernel answers reads of cached pages itself, and counts no files.
    """
    if sample.number("plan.files"):
        return f"{sample.rate(earlier, 'plan.position'):,.0f}/s along the plan"
    loaded = sample.rate(earlier, "page_cache.filled.filled_files")
    return f"{loaded:,.0f}/s loaded into the page cache (no plan: files read are not counted)"


def _shares(sample: Sample, earlier: Sample, sources: Mapping[str, tuple[str, ...]]) -> str:
    """Return the shares of sources, those of 0 left out; of all time if nothing has changed."""
    for since, note in ((earlier, ""), (Sample(), " (in all)")):
        counts = {name: sample.change(since, *paths) for name, paths in sources.items()}
        if whole := sum(counts.values()):
            shares = {name: 100 * count / whole for name, count in counts.items() if count}
            return ", ".join(f"{name} {_percent(share)}" for name, share in shares.items()) + note
    return ""


def _percent(share: float) -> str:
    return f"{share:.{0 if 10 <= share < 99.5 or share == 100 else 1}f} %"


def _errors(sample: Sample) -> str:
    said = []
    if total := sample.number("failed_reads.total"):
        kinds = sample.part("failed_reads.kinds").items()
        named = ", ".join(f"{count} {kind}" for kind, count in kinds)
        said.append(f"{total:,.0f} READs failed ({named})")
    counts = {
        "retries": sample.number("store.retry.retries"),
        "given up": sample.number("store.retry.given_up"),
        "hung": sample.number("store.deadline.abandoned"),
    }
    if any(counts.values()):
        shown = (f"{count:,.0f} {name}" for name, count in counts.items() if count)
        said.append("store: " + ", ".join(shown))
    return "; ".join(said) or "none"


def _plan(sample: Sample, size: Callable[[float], str]) -> str:
    if not sample.number("plan.files"):
        return "none"
    window, late = size(sample.number("plan.window_bytes")), sample.number("plan.late")
    files = counted(round(sample.number("plan.files")), "file")
    position = f"{sample.number('plan.position'):,.0f} of {files}"
    return f"{position}, window {window}, {counted(round(late), 'late chunk')}"


def _ssd_summary(sample: Sample, earlier: Sample, size: Callable[[float], str]) -> str:
    state = _ssd(sample.part("ssd"))
    if state != "in service":
        return state
    reads = {"hits": ("ssd.hits",), "misses": ("ssd.misses",)}
    shares = _shares(sample, earlier, reads) or "no reads"
    last = f"{size(sample.number('ssd.written_bytes'))} written"
    policy = sample.found("ssd.policy.acting.name")
    if policy:
        last = f"{policy} wrote {size(sample.number('ssd.policy.acting.counts.written_bytes'))}"
    if sample.part("ssd.warmup"):
        whole = size(sample.number("ssd.warmup.bytes"))
        last = f"warmed {size(sample.number('ssd.warmup.cached_bytes'))} of {whole}"
    return f"{state}; {shares}; {last}"


def rows(sample: Sample, earlier: Sample, *, human: bool) -> list[tuple[str, str, str]]:
    """Return all rows for people: name, total, and rate per second."""

    def counter(name: str, path: str) -> tuple[str, str, str]:
        return name, f"{sample.number(path):,.0f}", f"{sample.rate(earlier, path):,.1f}"

    def size(size_bytes: float) -> str:
        return human_size(size_bytes) if human else f"{size_bytes:.0f}"

    def volume(name: str) -> tuple[str, str, str]:
        path = _VOLUMES[name]
        return name, size(sample.number(path)), f"{size(sample.rate(earlier, path))}/s"

    def part(path: str, now: str, most: str = "budget_bytes") -> str:
        return f"{size(sample.number(f'{path}.{now}'))} of {size(sample.number(f'{path}.{most}'))}"

    kinds = sample.part("failed_reads.kinds")
    front, warm_up = sample.part("front"), sample.part("ssd.warmup")
    loaded = part("ssd.warmup", "cached_bytes", "bytes")
    outstanding = part("page_cache.prefill", "outstanding_bytes")
    return [
        ("uptime", f"{sample.number('uptime_s'):,.0f} s", ""),
        ("front", f"{front.get('kind')}, {front.get('reason')}" if front else "unknown", ""),
        *(counter(f"request {kind}", f"requests.{kind}") for kind in sample.kinds()),
        volume("bytes read"),
        *(counter(name, path) for name, path in _COUNTERS.items()),
        *(counter(f"reads that failed: {kind}", f"failed_reads.kinds.{kind}") for kind in kinds),
        volume("bytes fetched"),
        volume("bytes loaded into the page cache"),
        ("prefilled, not read yet", outstanding, ""),
        ("node memory", part("cache.node", "cached_bytes"), ""),
        ("peers", _peers(sample), ""),
        volume("bytes written to the SSD"),
        ("SSD tier", _ssd(sample.part("ssd")), ""),
        *_policies(sample, size),
        *([("SSD warm-up", f"{warm_up.get('state')}; {loaded}", "")] if warm_up else []),
        ("cache nodes", _up(sample, "cache_cluster", "nodes"), ""),
        ("plan: position", _position(sample), ""),
        ("plan: window", size(sample.number("plan.window_bytes")), ""),
        ("plan: told", _told(sample), ""),
        *_allocation(sample, size),
    ]


def _allocation(sample: Sample, size: Callable[[float], str]) -> list[tuple[str, str, str]]:
    """Return a row for the remote IO and one for the quota, if there are any."""
    found, rows = sample.part("allocation"), []
    if found.get("job_bytes_per_s") is not None:
        used, allowed, job = (
            f"{size(sample.number(f'allocation.{of}_bytes_per_s'))}/s"
            for of in ("used", "allowed", "job")
        )
        waited = f"waited {sample.number('allocation.waited_s'):,.1f} s"
        rows.append(("allocated remote IO", f"{used} of {allowed}, of the job {job}; {waited}", ""))
    if found.get("quota_bytes") is not None:
        held, effective, quota = (
            size(sample.number(f"allocation.{of}_bytes")) for of in ("held", "effective", "quota")
        )
        rows.append(("allocated cache", f"{held} of {quota}, effective {effective}", ""))
    return rows


def _policies(sample: Sample, size: Callable[[float], str]) -> list[tuple[str, str, str]]:
    """Return a row for the cache policy of the SSD, and one for its shadow policy."""
    found = []
    for role, name in (("acting", "SSD cache policy"), ("shadow", "SSD shadow policy")):
        path = f"ssd.policy.{role}"
        if sample.part(path):
            hit, missed, filled, written = (
                sample.number(f"{path}.counts.{of}_bytes")
                for of in ("hit", "miss", "filled", "written")
            )
            said = f"served {size(hit)} of {size(hit + missed)}, filled by {size(filled)}"
            found.append(
                (name, f"{sample.found(f'{path}.name')}; {said}, wrote {size(written)}", "")
            )
    return found


def _position(sample: Sample) -> str:
    files = sample.number("plan.files")
    return f"{sample.number('plan.position'):,.0f} of {files:,.0f}" if files else "no plan"


def _told(sample: Sample) -> str:
    """Return how the plans that are read now were told."""
    ways = {"shared_memory": "in shared memory", "mount": "through the mount", "lists": "by a list"}
    counts = {way: sample.number(f"plan_sources.{name}") for name, way in ways.items()}
    return ", ".join(f"{count:,.0f} {way}" for way, count in counts.items() if count) or "no plan"


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
