"""The texts of the control directory's small files: what is mounted, and how it fares."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, is_dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from dieselfs.fuse.file_reader import ReaderStatistics
from dieselfs.fuse.statistics import FastPathStatistics
from dieselfs.plan.follower import FollowerStatistics
from metadata.snapshot import Snapshot
from metadata.url_secrets import without_secrets

_NO_FAST_PATH: Final = FastPathStatistics()
SHUFFLE_README: Final = b"""\
Open a file here whose name says which order you want, for instance

    seed=1,epoch=0,group=100,rank=0,world=1

and read the paths of that rank's files in chunk-wise shuffled order, one a line, relative to the
mountpoint. What is left out has its default. A name that is no set of parameters is an error (EINVAL).
"""

PLAN_README: Final = b"""\
A program that knows its reading order writes it as a plan into the folder that dataset.json calls
node_memory, and looks up the plan's id here. What it reads says whether the mount fetches ahead of it.
dieselfs.plan.announcement does both.
"""


def dataset_document(
    snapshot: Snapshot,
    store_url: str,
    options: Mapping[str, object],
    mounted_ns: int,
    node_memory: Path | None = None,
) -> bytes:
    """`dataset.json`: which dataset and snapshot this mount shows, from where, by whom, since when."""
    return _json(
        {
            "dataset": snapshot.dataset.name,
            "dataset_id": snapshot.dataset.id.hex(),
            "generation": snapshot.generation,
            "updated": timestamp(snapshot.updated_ns),
            "snapshot": str(snapshot.id),
            "snapshot_file": os.fspath(snapshot.path),
            "files": snapshot.file_count,
            "directories": snapshot.directory_count,
            "chunks": snapshot.chunk_count,
            "bytes": snapshot.total_bytes,
            "store": without_secrets(store_url),
            "node_memory": None if node_memory is None else os.fspath(node_memory),
            "options": dict(options),
            "pid": os.getpid(),
            "mounted": timestamp(mounted_ns),
        }
    )


def statistics_document(
    requests: Mapping[str, int],
    reader: ReaderStatistics,
    cache: object,
    uptime_s: float,
    fast_path: FastPathStatistics = _NO_FAST_PATH,
    plan: FollowerStatistics | None = None,
    store: object = None,
    control_reads: int = 0,
    peers: object = None,
    ssd: object = None,
    ring: object = None,
) -> bytes:
    """`stats.json`: counters since the mount began.

    `requests` (by kind) and `reader` are those of Python alone, `cache`, `store`, `peers`, `ssd` and `ring` are the statistics dataclasses of node memory, of the
    store behind it, of the task's peer cache, of the SSD tier and of the cache nodes, if there are these. The document has the sums, so that it reads the same with and without a fast path.

    `requests.read` is the sum of `hits` and `other_reads`, but for READs that are under way.
    """
    cached = _shown(cache)
    fast_past_end = fast_path.requests.get("read", 0) - fast_path.node_memory_hits
    return _json(
        {
            "uptime_s": round(uptime_s, 3),
            "fast_path": {
                "active": fast_path.active,
                "reason": fast_path.reason,
                "threads": fast_path.threads,
            },
            "requests": dict(sorted((Counter(requests) + Counter(fast_path.requests)).items())),
            "requests_in_python": dict(sorted(requests.items())),
            "bytes_read": reader.bytes_read + fast_path.bytes_read,
            "hits": {
                "node_memory": cached.get("hits", 0) + fast_path.node_memory_hits,
                "store": cached.get("misses", 0),
            },
            "other_reads": {
                "control": control_reads,
                "past_end": reader.past_end + max(0, fast_past_end),
                "refused": reader.refused,
            },
            "reads_through_threads": reader.thread_reads,
            "waits_over_1_ms": reader.waits,
            "waited_s": round(reader.waited_s, 3),
            "stored_ahead": asdict(fast_path.stored_ahead),
            "listed_ahead": {"directories": fast_path.listed_ahead},
            "cache": cached,
            "plan": None if plan is None else asdict(plan),
            "store": _shown(store),
            "peers": _shown(peers) or None,
            "ssd": _shown(ssd) or None,
            "ring": _shown(ring) or None,
        }
    )


def _shown(statistics: object) -> dict[str, Any]:
    if is_dataclass(statistics) and not isinstance(statistics, type):
        return asdict(statistics)
    return {}


def timestamp(time_ns: int) -> str:
    """Seconds since the epoch as ISO 8601 in UTC."""
    return datetime.fromtimestamp(time_ns // 1_000_000_000, UTC).isoformat()


def _json(document: Mapping[str, Any]) -> bytes:
    return json.dumps(document, indent=2).encode() + b"\n"
