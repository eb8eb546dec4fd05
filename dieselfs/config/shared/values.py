"""The keys that may be set in a store, and which values each one takes."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Final
from urllib.parse import urlsplit

from dieselfs.config import SHARED_KEYS
from dieselfs.config.former_names import present_key
from dieselfs.errors import ConfigError, UsageError
from metadata.url_secrets import redacted

Check = Callable[[str], str | None]
"""A function that returns what a value should be; None for a good one."""

_INDEX_SCHEMES: Final = ("redis", "rediss", "redis+cluster", "rediss+cluster", "lmdb", "memory")
STORE_KEYS: Final = ("index",)
"""Keys for the whole store alone: commands over all datasets use them too."""


def known_key(key: str, dataset: str | None) -> str:
    """Return the key's present name; raise `ConfigError` for one that cannot be set."""
    key = present_key(key.replace("-", "_"))
    if key not in SHARED_KEYS:
        raise ConfigError(f"unknown key {key!r}", _advice(key))
    if dataset is not None and key in STORE_KEYS:
        raise ConfigError(
            f"{key} is for the whole store: commands over all datasets use it too",
            "leave out --dataset",
        )
    return key


def check_value(key: str, value: str) -> None:
    """Raise `ConfigError` with the reason if a key does not take the value."""
    if redacted(value) != value:
        raise ConfigError(
            f"{key} {redacted(value)}: every reader of the store could read a password in it",
            "leave it out of the URL; set it on each node as DIESELFS_INDEX_LOGIN=USER:PASSWORD, "
            "or as index_login in a profile",
        )
    wanted = _CHECKS[key](value)
    if wanted is not None:
        raise ConfigError(f"{key} cannot be {value!r}", f"write {wanted}")


def check_together(values: Mapping[str, object]) -> None:
    """Raise `ConfigError` for values that no SSD tier takes together."""
    admission, policy = values.get("ssd_admission"), values.get("ssd_policy", "lru")
    if admission is not None and policy != "lru":
        raise ConfigError(
            f"ssd_admission {admission} and ssd_policy {policy}: a policy decides what is admitted",
            "unset one of them first",
        )


def usable(values: Mapping[str, object], dataset: str | None) -> tuple[dict[str, str], list[str]]:
    """Return the stored values that this release understands, and the keys of the others."""
    good: dict[str, str] = {}
    for key, value in values.items():
        try:
            known_key(key, dataset)
            if isinstance(value, str):
                check_value(key, value)
                good[key] = value
        except ConfigError:
            continue
    try:
        check_together(good)
    except ConfigError:
        del good["ssd_admission"]
    return good, [key for key in values if key not in good]


def _advice(key: str) -> str:
    from difflib import get_close_matches

    if key == "store":
        return "each node names its store itself: DIESELFS_STORE, --store or a profile"
    if key == "index_login":
        return "a password is set on each node: DIESELFS_INDEX_LOGIN or a profile"
    near = get_close_matches(key, SHARED_KEYS, n=1)
    return f"did you mean {near[0]}?" if near else f"the keys are {', '.join(SHARED_KEYS)}"


def _index(value: str) -> str | None:
    scheme, separator, place = value.partition("://")
    if separator and place and scheme in _INDEX_SCHEMES and _is_place(scheme, value):
        return None
    return (
        "redis://HOST:PORT/DB, rediss://…, redis+cluster://HOST:PORT[,HOST:PORT…] or lmdb:///FOLDER"
    )


def _is_place(scheme: str, url: str) -> bool:
    """Return whether a URL of the scheme names a folder, or servers, by which it can be opened."""
    if scheme == "memory":
        return True
    try:
        parts = urlsplit(url, allow_fragments=False)
        if scheme == "lmdb":
            return parts.netloc in ("", "localhost") and bool(parts.path.strip("/"))
        servers = [urlsplit(f"//{server}") for server in parts.netloc.rpartition("@")[2].split(",")]
        return all(server.hostname and server.port != 0 for server in servers)
    except ValueError:  # of a port
        return False


def _cluster(value: str) -> str | None:
    from dieselfs.cache.cluster.topic import is_cluster_name
    from dieselfs.cache.membership.peer_addresses import parse_addresses

    if value in ("none", "redis"):
        return None
    if value.startswith("redis:"):
        return None if is_cluster_name(value[6:]) else "redis:NAME"
    name, at, addresses = value.rpartition("@")
    try:
        parse_addresses(addresses, "cache_cluster")
    except UsageError:
        return "redis, redis:NAME, [NAME@]HOST:PORT,HOST:PORT… or none"
    return None if not at or is_cluster_name(name) else "NAME@HOST:PORT,HOST:PORT…"


def _patterns(value: str) -> str | None:
    from chunkstore.ssd.policies.eligibility import SPELLING, Eligibility

    try:
        Eligibility.parse(value)
    except ValueError as error:
        return f"{SPELLING}: {error}"
    return None


def _file(value: str) -> str | None:
    return None if os.path.expanduser(value).startswith("/") else "an absolute path"


def _folder(value: str) -> str | None:
    return None if value == "none" else _file(value)


def _size(least_bytes: int, least: str = "") -> Check:
    def check(value: str) -> str | None:
        from dieselfs.cache.ssd.byte_sizes import parse_size

        try:
            return None if parse_size(value) >= least_bytes else f"a size of {least} at least"
        except UsageError:
            return "a size, for instance 64MiB or 2G"

    return check


def _seconds(value: str) -> str | None:
    is_number = value.isascii() and value.isdecimal() and len(value) < _MOST_DIGITS
    return None if is_number and int(value) else "whole seconds"


def _one_of(*words: str) -> Check:
    return lambda value: None if value in words else " or ".join(words)


def _yes_or_no(value: str) -> str | None:
    return None if value.lower() in (*_YES, *_NO) else "yes or no"


def _rate(value: str) -> str | None:
    from dieselfs.cache.ssd.byte_sizes import parse_rate

    try:
        return None if parse_rate(value) else "a rate above 0, for instance 100MB/s"
    except UsageError:
        return "a rate, for instance 100MB/s"


def _policy(field: str) -> Check:
    def check(value: str) -> str | None:
        from chunkstore.ssd.policies.segment_buckets import BUCKET_MAPS
        from chunkstore.ssd.policy_choice import POLICIES

        words = BUCKET_MAPS if field == "buckets" else POLICIES
        return None if value in words else " or ".join(words)

    return check


_YES: Final = ("1", "yes", "true", "on")
_NO: Final = ("0", "no", "false", "off")
_MOST_DIGITS: Final = 10
_CHECKS: Final[Mapping[str, Check]] = {
    "index": _index,
    "cache_cluster": _cluster,
    "cache_cluster_secret_file": _file,
    "cache_datasets": _patterns,
    "ssd": _folder,
    "ssd_size": _size(6 << 20, "6MiB"),
    "ssd_admission": _one_of("all", "reject-first"),
    "ssd_eviction": _one_of("lru", "fifo"),
    "ssd_warmup": _yes_or_no,
    "ssd_policy": _policy("policy"),
    "ssd_shadow_policy": _policy("policy"),
    "ssd_write_budget": _rate,
    "ssd_buckets": _policy("buckets"),
    "patience": _seconds,
    "refresh": _yes_or_no,
    "memory": _size(1, "1 byte"),
    "eviction": _one_of("uniform", "lru"),
    "prefill": _size(0),
}
