"""The settings of a mount, as its request and the configuration give them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from dieselfs.config import Config
from dieselfs.errors import LocalFileError, UsageError
from dieselfs.fuse.starting.mount_request import MountRequest

if TYPE_CHECKING:
    from dieselfs.cache.cluster.settings import CacheClusterSettings
    from dieselfs.cache.ports.peer_settings import PeerSettings
    from dieselfs.cache.read_settings import ReadSettings
    from dieselfs.cache.ssd.settings import SsdSettings
    from dieselfs.fuse.fronts.front_parts import MountOptions
    from metadata.snapshot import Snapshot


def opened(path: Path, request: MountRequest) -> Snapshot:
    """Open the snapshot file of a request.

    Raises `LocalFileError` if it can't be opened, and `SnapshotRefused` if it is of another
    dataset, or was damaged since it was verified: a server that follows another opens it too.
    """
    from dieselfs.snapshots.snapshot_choice import check_dataset
    from metadata.snapshot import Snapshot

    try:
        snapshot = Snapshot.open(path)
    except OSError as error:
        raise LocalFileError(f"{path}: {error.strerror}", "see `dlcmd snapshot ls`") from error
    check_dataset(snapshot, request.address.dataset, path)
    snapshot.check_hash()
    return snapshot


def check_memory(request: MountRequest) -> None:
    """Raise `UsageError` if the request's budget exceeds what this node or its group may have.

    Such a budget would be noticed hours later, when the kernel ends a process of the training.
    """
    from dieselfs.cache.ports.free_memory import usable_memory_bytes
    from dieselfs.cache.ssd.byte_sizes import human_size

    usable = usable_memory_bytes()
    if (request.memory_bytes or 0) > usable:
        raise UsageError(
            f"{human_size(request.memory_bytes or 0)} of memory is more than this machine, or the "
            f"control group of this process, has: {human_size(usable)}",
            "give a smaller --memory, or leave it out: a quarter of the free memory",
        )


def check_room(request: MountRequest, settings: ReadSettings, snapshot: Snapshot) -> None:
    """Raise an error if memory is too small for the known order.

    Without this check only the log would show it.
    """
    from dieselfs.prefetch.requirement import require_room_for

    if request.shuffle is not None:
        require_room_for(snapshot, request.shuffle, settings.budget_bytes(snapshot.dataset))


def peer_settings(config: Config, request: MountRequest) -> PeerSettings | None:
    """Return the settings of the peer cache, or None. A secret prevents core dumps."""
    from dieselfs.cache.membership import peer_options
    from dieselfs.cache.ports.core_dumps import prevent_core_dumps

    options = request.peers.otherwise(peer_options.options_in(os.environ))
    settings = peer_options.peer_settings(options, request.task, config.index)
    if settings is not None:
        prevent_core_dumps()
    return settings


def cache_cluster_settings(config: Config, request: MountRequest) -> CacheClusterSettings | None:
    """Return the settings of the cache cluster, or None. A secret prevents core dumps."""
    from dieselfs.cache.cluster import options as cluster_options
    from dieselfs.cache.ports.core_dumps import prevent_core_dumps

    settings = cluster_options.cache_cluster_settings(request.cache_cluster, config)
    if settings is not None:
        prevent_core_dumps()
    return settings


def ssd_settings(config: Config, request: MountRequest) -> SsdSettings | None:
    """Return the settings of the SSD tier that the request or the configuration names, or None."""
    from dieselfs.cache.ssd import settings as ssd_tier

    return ssd_tier.ssd_settings(request.ssd.otherwise(ssd_tier.configured(config)))


def read_settings(config: Config, request: MountRequest) -> ReadSettings:
    """Return the parts through which the mount reads."""
    from dieselfs.allocation.readers.allocation_settings import AllocationSettings
    from dieselfs.cache.cached_datasets import cached_datasets
    from dieselfs.cache.read_settings import ReadSettings
    from dieselfs.cache.trace_options import trace_settings

    return ReadSettings(
        task=request.task,
        memory_bytes=request.memory_bytes,
        eviction=request.eviction or "uniform",
        peers=peer_settings(config, request),
        ssd=ssd_settings(config, request),
        cache_cluster=cache_cluster_settings(config, request),
        cached_datasets=cached_datasets(request.cache_datasets, config),
        trace=trace_settings(request.trace, config),
        allocation=AllocationSettings(requested_job(config, request), config.index.value),
    )


def requested_job(config: Config, request: MountRequest) -> str:
    """Return the name of the job for which the mount reads; empty for none.

    Raises `UsageError` for a name that cannot be one.
    """
    from dieselfs.cache.jobs.job_name import job_name

    return job_name(request.job, config.job, request.task, os.environ)


def told_job(config: Config, request: MountRequest, settings: ReadSettings) -> str | None:
    """Return the job that the mount tells cache policies; None if none of its parts can have one.

    Empty: the job has no name.
    """
    if (settings.ssd, settings.cache_cluster, settings.trace) == (None, None, None):
        return None
    return requested_job(config, request)


def mount_options(config: Config, request: MountRequest) -> MountOptions:
    """Return the options of the mount itself. The store's URL has no password."""
    from dieselfs.fuse.fronts.front_parts import MountOptions
    from metadata.url_secrets import redacted

    return MountOptions(
        request.mountpoint,
        store_url=redacted(config.store.value),
        allow_other=request.allow_other,
        uid=request.uid,
        gid=request.gid,
        nonempty=request.nonempty,
        front=request.front,
        blob_cache=request.blob_cache,
        shuffle=request.shuffle,
        foreign_plans=not request.no_foreign_plans,
        prefill_bytes=request.prefill_bytes,
        threads=request.threads,
    )
