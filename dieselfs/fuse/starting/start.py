"""Start a mount in the background: choose its snapshot, check all that can be wrong, wait for it.

A mount of a blob that is pinned on this node's SSD needs no daemon. One that shows what another one
shows, with the same options, shares its server. Any other has a daemon of its own.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any, Final

from dieselfs.assembly import open_configured_store, open_places, private_snapshot_folder
from dieselfs.config import Config
from dieselfs.dataset.dataset import Dataset, open_dataset
from dieselfs.errors import SnapshotNotFound
from dieselfs.fuse.mounts.erofs_mounts import share
from dieselfs.fuse.mounts.mount_table import MountState, ask, entry_at, mount_entries
from dieselfs.fuse.mounts.mountpoint import check_mountable, resolve
from dieselfs.fuse.starting.local_start import start_locally
from dieselfs.fuse.starting.mount_request import MountRequest, daemon_command, sharing_key
from dieselfs.fuse.starting.mount_settings import (
    check_memory,
    check_room,
    opened,
    read_settings,
    told_job,
)
from dieselfs.fuse.starting.started_mount import StartedMount
from dieselfs.fuse.starting.store_probe import check_store, quick_stale_note, stale_note
from dieselfs.fuse.supervision.daemonize import default_log_file, start_in_background
from dieselfs.snapshots import snapshot_choice
from metadata.errors import SnapshotRefused, SnapshotStale
from metadata.path_lookup import why_in_python

log = logging.getLogger(__name__)

Say = Callable[[str], None]
"""A function that shows a line to the user at once."""
Create = Callable[[Dataset], Path]
"""A function that makes a snapshot of a dataset and returns its file."""
ANSWER_TIMEOUT_S: Final = 2.0
_CHECKOUT: Final = Path(__file__).parents[3]


def start_mount(config: Config, request: MountRequest, say: Say, create: Create) -> StartedMount:
    """Mount, and return when the mount answers.

    Raises `MountError`, `UsageError`, `ConfigError`, `PlanTooLarge` if memory is too small for the
    order that will be read, and the errors of `choose_snapshot`. Nothing is left behind then.
    """
    check_mountable(request.mountpoint, request.nonempty)
    check_memory(request)
    settings = read_settings(config, request)
    if settings.ssd is not None:
        settings.ssd.check()
        if kept := settings.ssd.kept_size():
            say(f"{kept}, so it keeps its size; see `dlcmd cache resize --help`")
    refusal = settings.cached_datasets.refusal(request.address.dataset)
    if refusal and (settings.ssd, settings.cache_cluster) != (None, None):
        say(f"no SSD keeps what is read here: {refusal} (cache_datasets)")
    path = choose_snapshot(config, request, say, create)
    mountpoint = resolve(request.mountpoint)
    with opened(path, request) as snapshot:
        local = start_locally(config, request, settings.ssd, snapshot, mountpoint, say)
        if local is not None:
            if stale := quick_stale_note(config, snapshot, mountpoint):
                say(stale)
            return local
        away = check_store(config, snapshot, settings.ssd)
        if away:
            say(away)
        elif stale := stale_note(config, snapshot, mountpoint):
            say(stale)
        check_room(request, settings, snapshot)
        name, files = f"{snapshot.dataset.name}@{snapshot.id}", snapshot.file_count
    key = sharing_key(config, request, path, told_job(config, request, settings))
    shared = _share(key, name, mountpoint)
    if shared is not None:
        return shared
    log_file = default_log_file(mountpoint)
    pid = start_in_background(daemon_command(config, request, path), mountpoint, log_file=log_file)
    front = _front(mountpoint)
    more = f"; for more: {front['more']}" if front.get("more") else ""
    counted = f"{files:,} file{'' if files == 1 else 's'}"
    notes = (
        f"mounted {name} ({counted}) at {mountpoint}; log: {log_file}",
        f"front: {front.get('kind')}, {front.get('reason')}{more}",
        *_missing_extension(),
    )
    return StartedMount(mountpoint, name, files, front.get("kind"), pid, log_file, notes)


def choose_snapshot(config: Config, request: MountRequest, say: Say, create: Create) -> Path:
    """Return the snapshot file to mount; pull it or make the first one if need be.

    Raises `SnapshotNotFound`, `SnapshotStale`, `SnapshotRefused`, `DatasetNotFound` and the errors
    of the store and the index.
    """
    dataset, folder = request.address.dataset, private_snapshot_folder(config)
    if request.snapshot or request.no_index:
        store = open_configured_store(config, None)
        if request.snapshot:
            return snapshot_choice.find_file_or_snapshot(request.snapshot, dataset, folder, store)
        if request.refresh:
            return snapshot_choice.pull_snapshot(None, dataset, folder, store)
        return snapshot_choice.newest_known(dataset, folder, store)
    object_store, index = open_places(config, patience_s=None)
    with closing(index):
        opened_dataset = open_dataset(object_store, index, dataset)
        try:
            return snapshot_choice.newest_fresh(dataset, folder, object_store, index)
        except (SnapshotNotFound, SnapshotStale, SnapshotRefused) as error:
            # The first mount needs no flag; a snapshot that exists is replaced only on request.
            if not (request.refresh or isinstance(error, SnapshotNotFound)):
                raise
            say(f"{str(error).partition(': ')[0]}: making a new one")
            return create(opened_dataset)


def _share(key: str, name: str, mountpoint: Path) -> StartedMount | None:
    """Show a mount of the same snapshot with the same options here too, if there is one.

    Both then share one server and one copy of the pages.
    """
    if os.geteuid() != 0:
        return None
    alike = [entry for entry in mount_entries() if entry.is_dieselfs and entry.shown == name]
    for info in ask(alike, ANSWER_TIMEOUT_S):
        details = info.details
        is_same = details.get("sharing_key") == key and info.is_erofs
        if info.state is MountState.SERVING and is_same:
            try:
                share(info.mountpoint, mountpoint, device=info.device)
            except OSError as error:  # it was unmounted meanwhile
                log.debug("%s is not shared: %s", info.mountpoint, error)
                continue
            note = f"mounted {name} at {mountpoint}; it shares the server of {info.mountpoint}"
            return StartedMount(
                mountpoint,
                name,
                details.get("files") or 0,
                (details.get("front") or {}).get("kind"),
                info.pid,
                notes=(note,),
            )
    return None


def _missing_extension() -> tuple[str, ...]:
    """Return a line that says why paths are looked up in Python, and the remedy; none in C."""
    why = why_in_python()
    if why is None:
        return ()
    if (_CHECKOUT / "scripts" / "setup.sh").is_file():
        remedy = f"run `make setup` in {_CHECKOUT}"
    else:
        remedy = (
            "install gcc and python3-dev, then DieselFS again with `pip install --force-reinstall "
            "--no-deps`"
        )
    return (f"look-ups of paths take 3 times as long without the C extension: {why}; {remedy}",)


def _front(mountpoint: Path) -> Mapping[str, Any]:
    """Return the front of a new mount, and the reason for it."""
    entry = entry_at(mountpoint)
    if entry is None:
        return {}
    [info] = ask([entry], ANSWER_TIMEOUT_S)
    return info.details.get("front") or {}
