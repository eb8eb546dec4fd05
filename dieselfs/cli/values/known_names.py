"""The names that a shell completes: datasets, paths in them, snapshots, mountpoints and tasks.

Nothing here is created or changed but the note of a store's settings, no error is raised, and no
log is written for a user. A store or an index is asked in a thread and has `NETWORK_S` to answer; a
place on this machine has `LOCAL_S`.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Final, TypeAlias, TypeVar
from urllib.parse import unquote, urlsplit

from dieselfs.cli.values.short_ids import short_id

if TYPE_CHECKING:
    from chunkstore.stores.object_store import ObjectStore
    from dieselfs.config import Config
    from metadata.kv.key_value_store import KeyValueStore
    from metadata.snapshot import Snapshot

NETWORK_S: Final = 0.3
LOCAL_S: Final = 1.0
_LOCAL: Final = ("file", "lmdb", "memory")
_HERE: Final = "file:///"
_STEP_S: Final = 0.02
_MOST: Final = 1000
"""The most paths of one directory."""

Look: TypeAlias = Callable[[], Iterable[str]]
Found = TypeVar("Found")


def dataset_names(config: Config) -> list[str]:
    """Return the datasets that the store or the index knows."""
    from dieselfs.snapshots.stored_datasets import dataset_names as names_in
    from metadata.dataset_state import list_datasets

    return _asked(
        (config.store.value, lambda: names_in(_store(config))),
        (config.index.value, lambda: [ref.name for ref in _with_index(config, list_datasets)]),
    )


def snapshot_names(config: Config, dataset: str) -> list[str]:
    """Return the tags of a dataset, and the ids of its snapshots, shortened."""
    from dieselfs.snapshots import lifecycle

    ids = [lifecycle.id_of(path) for path in lifecycle.list_local(config.snapshot_folder, dataset)]

    def published() -> Iterator[str]:
        yield from (listed.snapshot_id for listed in lifecycle.list_published(store, dataset))

    store = _store(config)
    place = config.store.value
    asked = _asked((place, published), (place, lambda: tag_names(config, dataset)))
    return sorted({short_id(name) for name in (*ids, *asked)})


def tag_names(config: Config, dataset: str) -> list[str]:
    """Return the tags of a dataset. Blocks while the store does not answer."""
    from chunkstore.commit_log import find_dataset
    from chunkstore.tags import current, read_tags

    store = _store(config)
    ref = find_dataset(store, dataset)
    return [] if ref is None else [tag.name for tag in current(read_tags(store, ref), ref)]


def tags(config: Config, dataset: str) -> list[str]:
    """Return the tags of a dataset, if the store answers soon."""
    return _asked((config.store.value, lambda: tag_names(config, dataset)))


def paths(config: Config, dataset: str, snapshot: str | None, begun: str) -> list[str]:
    """Return the paths of a dataset that begin with `begun`, of one directory.

    Directories end with a slash. The index answers, or else a snapshot on this machine.
    """
    directory, slash, prefix = begun.rpartition("/")
    above, name = directory + slash, os.fsencode(prefix)
    found: list[str] = []
    if snapshot is None:
        found = _asked((config.index.value, lambda: _in_index(config, dataset, directory, name)))
    if not found:
        place = _HERE if snapshot is None else config.store.value  # a tag is in the store
        found = _asked((place, lambda: _in_snapshot(config, dataset, snapshot, directory, name)))
    return [above + path for path in found[:_MOST]]


def mountpoints() -> list[str]:
    """Return the mountpoints of datasets, from the kernel's table alone."""
    from dieselfs.fuse.mounts.mount_table import mount_entries

    with suppress(OSError):
        return [os.fspath(entry.mountpoint) for entry in mount_entries() if entry.is_dieselfs]
    return []


def task_names() -> list[str]:
    """Return the tasks of this user that have a folder on this node."""
    from dieselfs.cache.node.task_folder import VARIABLE

    folder = Path(os.environ.get(VARIABLE) or "/dev/shm") / f"dieselfs-{os.geteuid()}"
    with suppress(OSError):
        return sorted(entry.name for entry in folder.iterdir() if not entry.name.startswith("."))
    return []


def job_names(config: Config) -> list[str]:
    """Return the jobs that the allocation directory knows, if it answers soon."""
    from dieselfs.allocation.directory.directories import allocation_directory
    from dieselfs.assembly import config_of_store

    def look() -> Iterator[str]:
        shared = config_of_store(config)
        with closing(allocation_directory(shared.index.value)) as directory:
            yield from (lease.job for lease in directory.leases() if lease.job)
            yield from (entry.job for entry in directory.jobs())
            yield from (each.job for each in directory.decisions().ios if each.job)

    return _asked((config.index.value, look))


def profile_names() -> list[str]:
    """Return the profiles of the configuration file."""
    import tomllib

    from dieselfs.config import config_file

    with suppress(OSError, ValueError):
        profiles = tomllib.loads(config_file().read_text(encoding="utf-8")).get("profiles", {})
        return sorted(profiles)
    return []


def _asked(*looks: tuple[str, Look]) -> list[str]:
    """Return what the looks find, each at a URL, without those that fail or are late."""
    done: SimpleQueue[list[str]] = SimpleQueue()

    def look_up(look: Look) -> None:
        found: list[str] = []
        with suppress(Exception):
            found = list(look())
        done.put(found)

    is_local = all(url.partition("://")[0] in _LOCAL for url, _ in looks)
    for _, look in looks:
        threading.Thread(target=look_up, args=(look,), daemon=True).start()
    found: set[str] = set()
    left, ends = len(looks), _idle_s() + (LOCAL_S if is_local else NETWORK_S)
    while left and _idle_s() < ends:
        with suppress(Empty):
            found.update(done.get(timeout=_STEP_S))
            left -= 1
    return sorted(found)


def _idle_s() -> float:
    """Return a clock that stands still while this process computes, such as for its imports."""
    return time.monotonic() - time.process_time()


def _store(config: Config) -> ObjectStore:
    from dieselfs.assembly import open_store

    return open_store(config.store.value, None)


def _with_index(config: Config, ask: Callable[[KeyValueStore], Iterable[Found]]) -> list[Found]:
    """Return what `ask` finds in the index; nothing if an LMDB index is not there yet."""
    from dieselfs.assembly import config_of_store, open_index

    config = config_of_store(config)
    parts = urlsplit(config.index.value, allow_fragments=False)
    if parts.scheme == "lmdb" and not Path(unquote(parts.path)).is_dir():
        return []
    with closing(open_index(config.index.value)) as index:
        return list(ask(index))


def _in_index(config: Config, dataset: str, directory: str, prefix: bytes) -> list[str]:
    from metadata.dataset_state import indexed_dataset
    from metadata.namespace import Namespace

    def listed(index: KeyValueStore) -> Iterator[str]:
        ref = indexed_dataset(index, dataset)
        if ref is not None:
            listing = Namespace(index, ref).list(os.fsencode(directory))
            yield from _decoded(listing.directory_names, prefix, "/")
            yield from _decoded(listing.file_names, prefix, "")

    return _with_index(config, listed)


def _in_snapshot(
    config: Config, dataset: str, wanted: str | None, directory: str, prefix: bytes
) -> Iterator[str]:
    from dieselfs.snapshots import lifecycle
    from dieselfs.snapshots.tagging import resolved
    from metadata.snapshot import Snapshot

    if wanted is not None:
        wanted = resolved(wanted, dataset, _store(config))
    known = lifecycle.list_local(config.snapshot_folder, dataset)
    for path in reversed(known):
        if wanted is None or lifecycle.is_called(lifecycle.id_of(path), wanted):
            with Snapshot.open(path) as snapshot:
                yield from _children(snapshot, directory, prefix)
            return


def _children(snapshot: Snapshot, directory: str, prefix: bytes) -> Iterator[str]:
    inode = snapshot.resolve(os.fsencode(directory))
    if inode is not None and snapshot.is_directory(inode):
        for name, child in snapshot.children(inode):
            yield from _decoded([name], prefix, "/" if snapshot.is_directory(child) else "")


def _decoded(names: Iterable[bytes], prefix: bytes, end: str) -> Iterator[str]:
    """Yield the names that begin with `prefix`, without those that no command line shows."""
    for name in names:
        if name.startswith(prefix) and (text := os.fsdecode(name)).isprintable():
            yield text + end
