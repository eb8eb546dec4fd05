"""The texts of the control directory's small files: what is mounted, and its counters."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from chunkstore.chunk_id import print_id
from dieselfs.config.former_names import with_former_keys
from dieselfs.fuse.mounts.front_choice import FrontChoice
from dieselfs.fuse.requests.file_reader import ReaderStatistics
from metadata.snapshot import Snapshot
from metadata.url_secrets import without_secrets

SHUFFLE_README: Final = b"""\
Open a file here whose name says which order you want, for instance

    seed=1,epoch=0,group=100,rank=0,world=1

and read the paths of that rank's files in chunk-wise shuffled order, one a line, relative to the
mountpoint. What is left out has its default. A name that is no set of parameters is an \
error (EINVAL).
"""

PLAN_README: Final = b"""\
A program that knows its reading order writes it as a plan into the folder that dataset.json calls
node_memory, and looks up the plan's id here. What it reads says whether the mount \
fetches ahead of it.
A program that cannot write there writes the plan here, into ID.plan, keeps it open, and reads
ID.plan. ID is 16 hexadecimal digits.
dieselfs.prefetch.announcement does all of it.
"""


WHY_README: Final = b"""\
Open a file here whose name is the number of a file in the snapshot, and read where its
chunk lies now and what the cache policy expects of it. `dlcmd why PATH` does so.
"""


def encoded(document: Mapping[str, Any]) -> bytes:
    """Return a document as the bytes of a control file."""
    return json.dumps(with_former_keys(document), indent=2).encode() + b"\n"


def snapshot_facts(snapshot: Snapshot) -> dict[str, object]:
    """Return the part of `dataset.json` that describes the snapshot of any mount."""
    return {
        "dataset": snapshot.dataset.name,
        "dataset_id": print_id(snapshot.dataset.id),
        "generation": snapshot.generation,
        "updated": timestamp(snapshot.updated_ns),
        "snapshot": str(snapshot.id),
        "snapshot_file": os.path.abspath(snapshot.path),
        "files": snapshot.file_count,
        "directories": snapshot.directory_count,
        "chunks": snapshot.chunk_count,
        "bytes": snapshot.total_bytes,
    }


def dataset_document(
    snapshot: Snapshot,
    store_url: str,
    options: Mapping[str, object],
    mounted_ns: int,
    node_memory: Path | None,
    front: FrontChoice,
    sharing_key: str,
    *,
    pid: int,
) -> bytes:
    """Return `dataset.json`: the dataset and snapshot of this mount, its source and its server.

    `pid` is the supervisor's, which lives as long as the mount unless it is killed; `server_pid` is
    that of the process that serves now. The document also has the time of the mount.
    """
    return encoded(
        {
            **snapshot_facts(snapshot),
            "store": without_secrets(store_url),
            "node_memory": None if node_memory is None else os.fspath(node_memory),
            "options": dict(options),
            "front": _shown_front(front),
            "sharing_key": sharing_key,
            "pid": pid,
            "server_pid": os.getpid(),
            "mounted": timestamp(mounted_ns),
        }
    )


@dataclass(frozen=True, slots=True)
class ServerStatistics:
    """The counters of one server of a mount, since it began."""

    uptime_s: float
    front: FrontChoice
    requests: Mapping[str, int]
    control_reads: int
    reader: ReaderStatistics


def statistics_document(server: ServerStatistics, tiers: Mapping[str, Any]) -> bytes:
    """Return `stats.json`: the counters of a server, and an object for each tier.

    `tiers` are the statistics dataclasses by the names that they have in the document, None for a
    tier that does not exist. The tier `cache`, node memory, always exists.
    """
    cache, reader = tiers["cache"], server.reader
    shown = {name: None if tier is None else asdict(tier) for name, tier in tiers.items()}
    return encoded(
        {
            "uptime_s": round(server.uptime_s, 3),
            "front": _shown_front(server.front),
            "requests": dict(sorted(server.requests.items())),
            "bytes_read": reader.bytes_read,
            "hits": {
                "node_memory": cache.hits,
                "misses": cache.misses,
                "store": cache.misses,  # the former name of it, which counted lower tiers too
            },
            "other_reads": {
                "control": server.control_reads,
                "past_end": reader.past_end,
                "refused": reader.refused,
            },
            "failed_reads": {"total": sum(reader.failed.values()), "kinds": dict(reader.failed)},
            "reads_through_threads": reader.thread_reads,
            "waits_over_1_ms": reader.waits,
            "waited_s": round(reader.waited_s, 3),
            **shown,
            "store": shown["store"] or {},
        }
    )


def _shown_front(choice: FrontChoice) -> dict[str, Any]:
    return {
        "kind": choice.front.value,
        "via_service": choice.via_service,
        "reason": choice.reason,
        "more": choice.more,
    }


def timestamp(time_ns: int) -> str:
    """Return a time in ns since 1970 as ISO 8601 in UTC."""
    return datetime.fromtimestamp(time_ns // 1_000_000_000, UTC).isoformat()
