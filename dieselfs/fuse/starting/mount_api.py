"""`dieselfs.mount`: a mounted dataset for the time of a `with` block."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dieselfs.assembly import config_of_store, private_snapshot_folder
from dieselfs.cache.ssd.byte_sizes import parse_size
from dieselfs.cache.ssd.options import SsdOptions
from dieselfs.config import load_config
from dieselfs.dataset.address import parse_address
from dieselfs.dataset.dataset import Dataset
from dieselfs.errors import AddressError, UsageError
from dieselfs.fuse.mounts.mount_table import entry_at
from dieselfs.fuse.mounts.mountpoint import unmount
from dieselfs.fuse.starting.configured_request import configured_request
from dieselfs.fuse.starting.mount_request import MountRequest
from dieselfs.fuse.starting.start import start_mount
from dieselfs.shuffle.order import ShuffleParameters, parse_parameters
from dieselfs.snapshots import lifecycle

log = logging.getLogger(__name__)


@contextmanager
def mount(
    address: str,
    mountpoint: str | os.PathLike[str],
    *,
    memory: int | str | None = None,
    shuffle: ShuffleParameters | str | None = None,
    ssd: str | os.PathLike[str] | None = None,
    ssd_size: int | str | None = None,
    task: str | None = None,
    preload: bool = False,
    refresh: bool | None = None,
    no_index: bool = False,
    allow_other: bool = False,
    store: str | None = None,
    index: str | None = None,
    profile: str | None = None,
) -> Iterator[Path]:
    """Mount a dataset read-only while the block runs, as `dlcmd mount` does; yield the mountpoint.

        with dieselfs.mount("imagenet", "/mnt/imagenet", memory="8GiB", shuffle="seed=1,group=100"):
            train("/mnt/imagenet")

    `address` is a dataset's name, or `NAME@SNAPSHOT` with a tag, a snapshot's id or a generation.
    The mountpoint is made if it is missing. Sizes are bytes, or text such as "8GiB". Settings that
    are omitted are found as `dlcmd` finds them: variables, profile, the store, defaults. A daemon
    serves the mount, which forked workers and other programs may use too. At the end of the block
    the mount is detached, by the process that mounted; it ends when the last open file is closed.

    Raises `MountError`, `MountpointBusy`, `PlanTooLarge`, `DatasetNotFound`, `SnapshotNotFound`,
    `SnapshotStale` (see `refresh`), `UsageError`, `ConfigError`, `Unavailable` and
    `IndexUnavailable`. Takes some 0.5 s.
    """
    place = Path(mountpoint)
    named = parse_address(address)
    if named.path:
        raise AddressError(f"{address}: only whole datasets are mounted", f"write {named.dataset}")
    config = config_of_store(load_config(store, index, profile), named.dataset)
    request = MountRequest(
        address=named,
        mountpoint=place,
        snapshot=named.snapshot,
        memory_bytes=_size(memory),
        shuffle=_parameters(shuffle),
        ssd=SsdOptions(None if ssd is None else os.path.abspath(ssd), _size(ssd_size)),
        task=task or os.environ.get("DIESELFS_TASK") or None,
        preload=preload,
        refresh=refresh,
        no_index=no_index,
        allow_other=allow_other,
    )

    def create(dataset: Dataset) -> Path:
        folder = private_snapshot_folder(config)
        return lifecycle.create(dataset, folder, unpublished=log.warning)

    place.mkdir(parents=True, exist_ok=True)
    pid = os.getpid()
    started = start_mount(config, configured_request(config, request), log.info, create)
    try:
        yield started.mountpoint
    finally:
        # The block may have ended it, and that of a forked child is not the mount's.
        if os.getpid() == pid and entry_at(started.mountpoint) is not None:
            unmount(started.mountpoint, lazy=True)


def _size(size: int | str | None) -> int | None:
    return parse_size(size) if isinstance(size, str) else size


def _parameters(shuffle: ShuffleParameters | str | None) -> ShuffleParameters | None:
    if not isinstance(shuffle, str):
        return shuffle
    try:
        return parse_parameters(shuffle)
    except ValueError as error:
        raise UsageError(f"shuffle {error}") from error
