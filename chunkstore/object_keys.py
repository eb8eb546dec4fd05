"""The keys of a store's objects.

All objects of a dataset lie under one prefix, and the settings of the store under another. Objects
are only created and deleted, never changed.
"""

from __future__ import annotations

import re

from chunkstore.chunk_id import ChunkId

_DATASET_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_GENERATION_DIGITS = 16
SETTINGS_PREFIX = "config/"
SETTINGS_NAME = "settings"


def check_dataset_name(name: str) -> None:
    """Raise `ValueError` unless `name` is a legal dataset name.

    Names become parts of object keys, file names and addresses: letters, digits, `.`, `_` and `-`,
    at most 128 characters, the first a letter or digit.
    """
    if not _DATASET_NAME.fullmatch(name):
        raise ValueError(
            f"illegal dataset name {name!r}: use letters, digits, '.', '_' and '-', "
            "starting with a letter or digit"
        )


def dataset_prefix(name: str) -> str:
    """Return the prefix of all objects of a dataset."""
    return f"datasets/{name}/"


def chunk_prefix(name: str) -> str:
    """Return the prefix of a dataset's chunks."""
    return f"datasets/{name}/chunks/"


def chunk_key(name: str, chunk_id: ChunkId) -> str:
    """Return the key of a chunk's object."""
    return f"{chunk_prefix(name)}{chunk_id}"


def chunk_of_key(name: str, key: str) -> ChunkId | None:
    """Return the chunk whose object a key names; None for a key of another kind or dataset."""
    prefix = chunk_prefix(name)
    if not key.startswith(prefix):
        return None
    try:
        return ChunkId.parse(key[len(prefix) :])
    except ValueError:
        return None


def dataset_of_chunk(key: str) -> str | None:
    """Return the dataset among whose chunks a key is; None for a key of another kind."""
    parts = key.split("/", 3)
    if len(parts) != 4 or parts[0] != "datasets" or parts[2] != "chunks":
        return None
    return parts[1]


def commit_prefix(name: str) -> str:
    """Return the prefix of a dataset's commits."""
    return f"datasets/{name}/commits/"


def commit_key(name: str, generation: int) -> str:
    """Return the key of a commit; keys sort as generations do."""
    return f"datasets/{name}/commits/{generation:0{_GENERATION_DIGITS}d}"


def damaged_commit_key(name: str, generation: int, number: int = 1) -> str:
    """Return the key to which the `number`th damaged commit of a generation is moved.

    Readers ignore the object: its name is not that of a commit.
    """
    return f"{commit_key(name, generation)}.damaged{f'.{number}' if number > 1 else ''}"


def log_plan_key(name: str) -> str:
    """Return the key of the plan of the commits that replace lost ones.

    The object exists until all of them are created.
    """
    return f"{commit_prefix(name)}plan"


def snapshot_prefix(name: str) -> str:
    """Return the prefix of a dataset's snapshots."""
    return f"datasets/{name}/snapshots/"


def snapshot_key(name: str, snapshot_id: str) -> str:
    """Return the key of a snapshot; `snapshot_id` is `<generation>-<hash of the whole file>`."""
    return f"datasets/{name}/snapshots/{snapshot_id}"


def tags_prefix(name: str) -> str:
    """Return the prefix of a dataset's tags."""
    return f"datasets/{name}/tags/"


def tag_key(name: str, tag: str, number: int) -> str:
    """Return the key of one number of a tag.

    `number` grows with each change of the tag; the greatest one is valid.
    """
    return f"datasets/{name}/tags/{tag}/{number:0{_GENERATION_DIGITS}d}"


def leases_prefix(name: str) -> str:
    """Return the prefix of a dataset's leases."""
    return f"datasets/{name}/leases/"


def lease_key(name: str, lease_id: str, number: int) -> str:
    """Return the key of one number of a lease; `number` grows with each renewal."""
    return f"datasets/{name}/leases/{lease_id}/{number:0{_GENERATION_DIGITS}d}"


def puts_prefix(name: str) -> str:
    """Return the prefix of the leases of a dataset's puts."""
    return f"datasets/{name}/puts/"


def put_lease_key(name: str, lease_id: str, number: int) -> str:
    """Return the key of one number of a put's lease; `number` grows with each renewal."""
    return f"{puts_prefix(name)}{lease_id}/{number:0{_GENERATION_DIGITS}d}"


def put_snapshots_prefix(name: str) -> str:
    """Return the prefix of the marks of snapshots that puts published."""
    return f"datasets/{name}/put-snapshots/"


def put_snapshot_key(name: str, snapshot_id: str) -> str:
    """Return the key of the mark of a snapshot: a put published it, and a later put may delete it.

    `snapshot_id` is as for `snapshot_key`.
    """
    return f"{put_snapshots_prefix(name)}{snapshot_id}"


def settings_key(number: int) -> str:
    """Return the key of one version of the store's settings; the greatest number is valid."""
    return f"{SETTINGS_PREFIX}{SETTINGS_NAME}/{number:0{_GENERATION_DIGITS}d}"
