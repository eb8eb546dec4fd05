"""Names of variables, keys and options from before the glossary.

They are accepted, or shown beside the present ones, for one release: CHANGELOG.md lists them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

_VARIABLES: Final = {
    "DIESELFS_CACHE_CLUSTER": "DIESELFS_RING",
    "DIESELFS_CACHE_CLUSTER_SECRET": "DIESELFS_RING_SECRET",
    "DIESELFS_CACHE_CLUSTER_SECRET_FILE": "DIESELFS_RING_SECRET_FILE",
}
"""Present name -> former name."""

_KEYS: Final = {
    "ring": "cache_cluster",
    "ring_secret_file": "cache_cluster_secret_file",
    "store_ahead": "prefill",
}
"""Keys of profiles and `-o` options: former name -> present name."""

_JSON_KEYS: Final = {
    "blocks": "pieces",
    "blocks_cached": "pieces_held",
    "bytes_from_nodes": "bytes_from_ring",
    "cache_cluster": "ring",
    "cached_bytes": "held_bytes",
    "cached_chunks": "held_chunks",
    "chunks_from_nodes": "chunks_from_ring",
    "classes_per_batch": "mix",
    "files_from_nodes": "files_from_ring",
    "loaded": "brought",
    "loaded_bytes": "brought_bytes",
    "mapped_blocks": "mapped_pieces",
    "share_cached_bytes": "share_held_bytes",
}
"""Present name -> former name."""


def variable(environment: Mapping[str, str], name: str) -> str | None:
    """Return the value of a variable of the environment, under its present or its former name."""
    return environment.get(name) or environment.get(_VARIABLES.get(name, name)) or None


def present_key(name: str) -> str:
    """Return the present name of a key of a profile or an `-o` option."""
    return _KEYS.get(name, name)


def with_former_keys(value: Any) -> Any:
    """Return a JSON value with each renamed key under both of its names."""
    if isinstance(value, Mapping):
        shown = {key: with_former_keys(item) for key, item in value.items()}
        former = {_JSON_KEYS[key]: item for key, item in shown.items() if key in _JSON_KEYS}
        return {**shown, **{key: item for key, item in former.items() if key not in shown}}
    if isinstance(value, list | tuple):
        return [with_former_keys(item) for item in value]
    return value
