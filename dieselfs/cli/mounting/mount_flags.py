"""The request of `dlcmd mount`, from flags and the options of an fstab line."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from dieselfs.cache.cluster.settings import CacheClusterOptions
from dieselfs.cache.membership.peer_options import PeerOptions
from dieselfs.cache.ssd.options import POLICY_KEYS, PolicyOptions, SsdOptions, typed_folder
from dieselfs.cache.trace_options import TraceOptions, typed_options
from dieselfs.cli.mounting.mount_options import as_number
from dieselfs.cli.values.sizes import parse_size
from dieselfs.config import TASK_VARIABLE
from dieselfs.dataset.address import DatasetAddress
from dieselfs.errors import UsageError
from dieselfs.fuse.starting.mount_request import MountRequest

if TYPE_CHECKING:
    from dieselfs.shuffle.order import ShuffleParameters

FRONTS: Final = ("auto", "erofs", "erofs-loop", "fuse")
BLOB_CACHES: Final = ("auto", "buffered", "direct")
EVICTIONS: Final = ("uniform", "lru")
MOST_THREADS: Final = 64


def mount_request(
    address: DatasetAddress, mountpoint: Path, options: dict[str, str], flags: dict[str, Any]
) -> MountRequest:
    """Build the request; flags take precedence over options.

    Raises `UsageError` for a combination that makes no sense.
    """
    if address.path:
        raise UsageError(f"{address}: only whole datasets are mounted", f"mount {address.dataset}")
    if address.snapshot and flags["snapshot"]:
        raise UsageError(f"{address} and --snapshot {flags['snapshot']}", "name one snapshot")
    front = _chosen("front", FRONTS, flags, options)
    blob_cache = _chosen("blob_cache", BLOB_CACHES, flags, options)
    if front == "fuse" and blob_cache not in (None, "auto"):
        raise UsageError(
            f"--blob-cache {blob_cache} is for EROFS, and --front is fuse", "leave out one of them"
        )
    memory_option = options.get("memory") or options.get("cache_memory")
    memory = None if memory_option is None else parse_size(memory_option)
    shuffle = flags["shuffle"] or options.get("shuffle")
    prefill = parse_size(options["prefill"]) if "prefill" in options else None
    return MountRequest(
        address=address,
        mountpoint=mountpoint,
        allow_other=flags["allow_other"] or "allow_other" in options,
        nonempty=flags["nonempty"] or "nonempty" in options,
        uid=as_number(options, "uid") if flags["uid"] is None else flags["uid"],
        gid=as_number(options, "gid") if flags["gid"] is None else flags["gid"],
        snapshot=flags["snapshot"] or options.get("snapshot") or address.snapshot,
        refresh=True if "refresh" in options else flags["refresh"],
        no_index=flags["no_index"] or "no_index" in options,
        memory_bytes=memory if flags["memory"] is None else flags["memory"],
        task=flags["task"] or options.get("task") or os.environ.get(TASK_VARIABLE) or None,
        job=options.get("job") if flags["job"] is None else flags["job"],
        shuffle=None if shuffle is None else _parameters(shuffle),
        eviction=_chosen("eviction", EVICTIONS, flags, options),
        no_foreign_plans=flags["no_foreign_plans"] or "no_foreign_plans" in options,
        preload=flags["preload"] or "preload" in options,
        prefill_bytes=prefill if flags["prefill"] is None else flags["prefill"],
        front=front or "auto",
        blob_cache=blob_cache or "auto",
        threads=_threads(flags, options),
        patience_s=_patience(flags, options),
        peers=_peers(options, flags),
        ssd=_ssd(options, flags),
        trace=_trace(options, flags),
        cache_cluster=CacheClusterOptions(
            flags["cache_cluster"] or options.get("cache_cluster"),
            flags["cache_cluster_secret_file"] or options.get("cache_cluster_secret_file"),
        ),
        cache_datasets=(
            options.get("cache_datasets")
            if flags["cache_datasets"] is None
            else flags["cache_datasets"]
        ),
    )


def _ssd(options: dict[str, str], flags: dict[str, Any]) -> SsdOptions:
    size = options.get("ssd_size")
    in_options = SsdOptions(
        options.get("ssd"),
        None if size is None else parse_size(size),
        options.get("ssd_admission"),
        options.get("ssd_eviction"),
        True if "ssd_warmup" in options else None,
        PolicyOptions(*(options.get(key) for key in POLICY_KEYS)),
    )
    return SsdOptions(
        typed_folder(flags["ssd"]),
        flags["ssd_size"],
        flags["ssd_admission"],
        flags["ssd_eviction"],
        flags["ssd_warmup"],
        PolicyOptions(*(flags[key] for key in POLICY_KEYS)),
    ).otherwise(in_options)


def _trace(options: dict[str, str], flags: dict[str, Any]) -> TraceOptions:
    size = options.get("record_trace_size")
    in_options = TraceOptions(
        options.get("record_trace"), None if size is None else parse_size(size)
    )
    return typed_options(flags["record_trace"], flags["record_trace_size"]).otherwise(in_options)


def _peers(options: dict[str, str], flags: dict[str, Any]) -> PeerOptions:
    in_options = PeerOptions(
        options.get("peers"),
        options.get("peer_listen"),
        options.get("peer_advertise"),
        options.get("peer_name"),
        as_number(options, "peer_nodes"),
        options.get("secret_file"),
        options.get("cache_policy"),
        True if "no_share" in options else None,
    )
    in_flags = PeerOptions(
        flags["peers"],
        flags["peer_listen"],
        flags["peer_advertise"],
        flags["peer_name"],
        flags["peer_nodes"],
        flags["secret_file"],
        flags["cache_policy"],
        flags["no_share"] or None,
    )
    return in_flags.otherwise(in_options)


def _patience(flags: dict[str, Any], options: dict[str, str]) -> float | None:
    given = as_number(options, "patience") if flags["patience"] is None else flags["patience"]
    return float(given) if given else None


def _threads(flags: dict[str, Any], options: dict[str, str]) -> int | None:
    threads = as_number(options, "threads") if flags["threads"] is None else flags["threads"]
    if threads is None or 1 <= threads <= MOST_THREADS:
        return threads
    raise UsageError(f"-o threads={threads}", f"write threads=1 to threads={MOST_THREADS}")


def _chosen(
    name: str, choices: tuple[str, ...], flags: dict[str, Any], options: dict[str, str]
) -> Any:
    """Return the value of a flag or -o option that has few values; None if neither was given."""
    value = flags[name] or options.get(name)
    if value is None or value in choices:
        return value
    raise UsageError(
        f"-o {name}={value}", "write " + " or ".join(f"{name}={choice}" for choice in choices)
    )


def _parameters(text: str) -> ShuffleParameters:
    from dieselfs.shuffle.order import parse_parameters

    try:
        # A comma would end a -o option, so a colon may stand for it.
        return parse_parameters(text.replace(":", ","))
    except ValueError as error:
        raise UsageError(f"--shuffle {error}") from error
