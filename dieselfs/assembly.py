"""Open the store and the index that a URL names.

This is the only module that knows every implementation of the ports. It imports each one on demand,
so that an embedded set-up needs no Redis and `dlcmd --help` needs neither.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar
from urllib.parse import SplitResult, unquote, urlsplit

from chunkstore.stores.retrying import PATIENCE_S
from dieselfs.config import Config, Setting
from dieselfs.errors import ConfigError, LocalFileError
from metadata.url_secrets import redacted

if TYPE_CHECKING:
    from chunkstore.stores.memory import MemoryObjectStore
    from chunkstore.stores.object_store import ObjectStore
    from chunkstore.stores.resilient import ResiliencePolicy, ResilientStore
    from metadata.kv.key_value_store import KeyValueStore
    from metadata.kv.memory import MemoryStore

_STORE_FORMS: Final = (
    "file:///FOLDER, s3://BUCKET/PREFIX, gs://BUCKET/PREFIX, az://CONTAINER/PREFIX, "
    "rados://POOL/NAMESPACE or memory://NAME"
)
_INDEX_FORMS: Final = (
    "lmdb:///FOLDER, redis://HOST:PORT/DB, rediss://…, redis+cluster://HOST:PORT[,HOST:PORT…] or "
    "memory://NAME"
)

# A memory:// place lives as long as the process; all users of its name share it.
_memory_stores: dict[str, MemoryObjectStore] = {}
_memory_indexes: dict[str, MemoryStore] = {}

Place = TypeVar("Place")


def open_store(url: str, patience_s: float | None = PATIENCE_S) -> ResilientStore:
    """Return the object store at `url`, made resilient; `ConfigError` names the accepted forms.

    An operation waits up to `patience_s` for a store that does not answer, as training wants it.
    With None it fails after four tries and at most 60 s, for a user who watches
    (docs/decisions/0010).
    """
    from chunkstore.stores.resilient import ResilientStore

    return ResilientStore(_open(url, _STORES, "a store", _STORE_FORMS), _policy(patience_s))


def _policy(patience_s: float | None) -> ResiliencePolicy:
    from chunkstore.stores.resilient import ResiliencePolicy
    from chunkstore.stores.retrying import RetryPolicy

    return ResiliencePolicy(
        RetryPolicy() if patience_s is None else RetryPolicy.patient(patience_s)
    )


def open_index(url: str) -> KeyValueStore:
    """Return the key-value database at `url`.

    `ConfigError` names the accepted forms. Raises `IndexUnavailable` if the database does not
    answer.
    """
    return _open(url, _INDEXES, "an index", _INDEX_FORMS)


def open_configured_store(
    config: Config, patience_s: float | None = PATIENCE_S, *, create: bool = False
) -> ResilientStore:
    """Return the configuration's store, as patient as `open_store` makes it.

    With `create` the first object creates the embedded default. Without it nothing is created.
    """
    if config.store.is_default and create:
        _make_private(_folder_of(config.store.value).parent)
    return _with_origin(config.store, lambda url: open_store(url, patience_s))


def open_places(
    config: Config, patience_s: float | None = PATIENCE_S, *, create: bool = False
) -> tuple[ObjectStore, KeyValueStore]:
    """Return the configuration's store and index. The caller closes the index.

    The settings in the store count, which costs one request. See `shared_config`.
    Without `create`, this raises `NoStoreYet` if the store is the embedded default and is missing.
    """
    if not create:
        check_default_store(config)
    store = open_configured_store(config, patience_s, create=create)
    return store, open_configured_index(shared_config(config, store))


def check_index_file(url: str) -> None:
    """Raise `IndexDamaged` if the URL is that of an LMDB file with damaged pages.

    The file is read and not opened as a database: see `metadata.kv.lmdb_pages`, also for the cost.
    """
    if url.startswith("lmdb://"):
        from metadata.kv.lmdb_pages import check_pages

        check_pages(_folder_of(url))


def open_configured_index(config: Config) -> KeyValueStore:
    """Return the configuration's index. The caller closes it."""
    if config.index.is_default:
        _make_private(_folder_of(config.index.value).parent)
    return _with_origin(config.index, open_index)


def shared_config(
    config: Config, store: ObjectStore, dataset: str | None = None, *, must_answer: bool = True
) -> Config:
    """Return the configuration, completed from the settings in the store.

    See `dieselfs.config.shared.stored.completed_config`. A folder that does not exist has no
    settings.
    """
    from dieselfs.config.shared.stored import completed_config

    url = config.store.value
    if url.startswith("file://") and not os.path.isdir(_folder_of(url)):
        return config
    return completed_config(config, store, dataset, must_answer=must_answer)


def with_patience(store: ResilientStore, config: Config) -> ResilientStore:
    """Return the open store with the configured patience, as a program that trains wants it."""
    return store.with_policy(_policy(configured_patience_s(config)))


def configured_patience_s(config: Config) -> float:
    """Return the seconds to wait for a store that does not answer; raise `ConfigError`."""
    setting = config.patience
    if setting is None:
        return PATIENCE_S
    if not setting.value.isdecimal() or not int(setting.value):
        raise ConfigError(f"patience {setting}: this is not a number", "write whole seconds")
    return float(setting.value)


def config_of_store(config: Config, dataset: str | None = None) -> Config:
    """Return the configuration, completed from the settings for the dataset and for the store.

    It is for those who can do without the store, and opens it only for this.
    """
    if config.has_stored:
        return config
    store = open_configured_store(config, None)
    return shared_config(config, store, dataset, must_answer=False)


def check_default_store(config: Config) -> None:
    """Raise `NoStoreYet` if the store is the embedded default and is missing.

    Its disk may not be mounted: an empty store in its place would look like lost datasets.
    """
    from chunkstore.errors import NoStoreYet

    if config.store.is_default and not (folder := _folder_of(config.store.value)).is_dir():
        raise NoStoreYet(
            f"there is no store at {folder}: make it with `dlcmd put`, mount its disk, or name "
            "another store with --store"
        )


def private_snapshot_folder(config: Config) -> Path:
    """Return the folder of local snapshots. Raises `ConfigError` if other users may write there.

    Snapshots are mapped into memory and trusted.
    """
    folder = config.snapshot_folder
    with suppress(FileNotFoundError, PermissionError):  # nothing can be read there then
        found = folder.stat()
        if found.st_uid not in (os.geteuid(), 0) or found.st_mode & 0o022:
            raise ConfigError(
                f"snapshot folder {config.snapshots} can be changed by other users",
                "make it yours alone (chmod 700), or choose another with DIESELFS_SNAPSHOTS",
            )
    return folder


def _with_origin(setting: Setting, opener: Callable[[str], Place]) -> Place:
    """Call `opener` with the setting's URL; a `ConfigError` also names the origin of the URL."""
    try:
        return opener(setting.value)
    except ConfigError as error:
        raise ConfigError(f"{error} (from {setting.origin})", error.hint) from error


def _open(url: str, openers: Mapping[str, Callable[[str], Place]], what: str, forms: str) -> Place:
    scheme, separator, _ = url.partition("://")
    if not separator:
        hint = (
            f"for a folder write file://{os.path.abspath(url.removeprefix('file:'))}"
            if "file" in openers and url
            else f"write {forms}"
        )
        raise ConfigError(f"{redacted(url)!r} is not the URL of {what}", hint)
    if scheme not in openers:
        from difflib import get_close_matches

        near = get_close_matches(scheme, openers, n=1)
        guess = f"did you mean {near[0]}://? The forms are {forms}" if near else f"write {forms}"
        raise ConfigError(f"{redacted(url)}: {scheme}:// is not {what}", guess)
    try:
        return openers[scheme](url)
    except ConfigError:
        raise
    except ValueError as error:
        has_advice = "; " in str(error)
        raise ConfigError(
            f"{redacted(url)}: {redacted(str(error))}", "" if has_advice else f"write {forms}"
        ) from error


def _folder_of(url: str) -> Path:
    """Return the absolute folder of a file:// or lmdb:// URL."""
    parts: SplitResult = urlsplit(url, allow_fragments=False)
    if parts.netloc not in ("", "localhost"):
        raise ConfigError(
            f"{url}: a path starts with a slash, {parts.netloc!r} would be a host",
            f"write {parts.scheme}:///{parts.netloc}{parts.path} with three slashes",
        )
    query = f"?{parts.query}" if parts.query else ""
    path = unquote(parts.path + query, errors="surrogateescape")
    if not path.strip("/"):
        raise ConfigError(f"{url} does not name a folder", f"write {parts.scheme}:///FOLDER")
    return Path(path)


def _make_private(folder: Path) -> None:
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise LocalFileError(
            f"{folder}: {error.strerror}", "choose other places with --store and --index"
        ) from error


def _local_directory(url: str) -> ObjectStore:
    from chunkstore.stores.local_directory import LocalDirectory

    return LocalDirectory(_folder_of(url))


def _cloud_store(url: str) -> ObjectStore:
    from chunkstore.stores.cloud import CloudStore
    from chunkstore.stores.forked_store import ForkedStore

    return ForkedStore(CloudStore(url))


def _rados_store(url: str) -> ObjectStore:
    from chunkstore.stores.forked_store import ForkedStore
    from chunkstore.stores.rados import RadosStore

    return ForkedStore(RadosStore(url))


def _memory_store(url: str) -> ObjectStore:
    from chunkstore.stores.memory import MemoryObjectStore

    return _memory_stores.setdefault(url, MemoryObjectStore())


def _lmdb_index(url: str) -> KeyValueStore:
    from metadata.kv.lmdb_file import LmdbFileStore

    return LmdbFileStore(_folder_of(url))


def _memory_index(url: str) -> KeyValueStore:
    from metadata.kv.memory import MemoryStore

    return _memory_indexes.setdefault(url, MemoryStore())


def _redis_index(url: str) -> KeyValueStore:
    from metadata.kv.redis_server import RedisServerStore

    _check_servers(url)
    return RedisServerStore(url)


def _cluster_index(url: str) -> KeyValueStore:
    from metadata.kv.redis_cluster import RedisClusterStore

    _check_servers(url)
    return RedisClusterStore(url)


def _check_servers(url: str) -> None:
    """Raise `ConfigError` for a wrong URL.

    redis-py would report it as a server that does not answer.
    """
    for server in urlsplit(url).netloc.rpartition("@")[2].split(","):
        parts = urlsplit(f"//{server}")
        if not parts.hostname or parts.port == 0:
            raise ConfigError(
                f"{redacted(url)}: {server!r} is not HOST:PORT", f"write {_INDEX_FORMS}"
            )


_STORES: Final[Mapping[str, Callable[[str], ObjectStore]]] = {
    "file": _local_directory,
    **dict.fromkeys(("s3", "gs", "az"), _cloud_store),
    "rados": _rados_store,
    "memory": _memory_store,
}
_INDEXES: Final[Mapping[str, Callable[[str], KeyValueStore]]] = {
    "lmdb": _lmdb_index,
    "redis": _redis_index,
    "rediss": _redis_index,
    "redis+cluster": _cluster_index,
    "rediss+cluster": _cluster_index,
    "memory": _memory_index,
}
