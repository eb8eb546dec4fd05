"""Where the object store keeps what. Everything of a dataset lies under one prefix and is only ever created, never changed."""

from __future__ import annotations

import re

from chunkstore.chunk_id import ChunkId

_DATASET_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_GENERATION_DIGITS = 16


def check_dataset_name(name: str) -> None:
    """Names become parts of object keys, of file names and of addresses: letters, digits, `.`, `_`, `-`, at most 128."""
    if not _DATASET_NAME.fullmatch(name):
        raise ValueError(
            f"illegal dataset name {name!r}: use letters, digits, '.', '_' and '-', starting with a letter or digit"
        )


def dataset_prefix(name: str) -> str:
    return f"datasets/{name}/"


def chunk_key(name: str, chunk_id: ChunkId) -> str:
    return f"datasets/{name}/chunks/{chunk_id}"


def commit_prefix(name: str) -> str:
    return f"datasets/{name}/commits/"


def commit_key(name: str, generation: int) -> str:
    return f"datasets/{name}/commits/{generation:0{_GENERATION_DIGITS}d}"


def damaged_commit_key(name: str, generation: int, number: int = 1) -> str:
    """Where a damaged commit is moved out of the way; the `number`th of that generation. It is no commit to anybody."""
    return f"{commit_key(name, generation)}.damaged{f'.{number}' if number > 1 else ''}"


def log_plan_key(name: str) -> str:
    """The commits that are being made in place of lost ones; there until all of them are."""
    return f"{commit_prefix(name)}plan"


def snapshot_prefix(name: str) -> str:
    return f"datasets/{name}/snapshots/"


def snapshot_key(name: str, snapshot_id: str) -> str:
    """`snapshot_id` is `<generation>-<hash of the whole file>`."""
    return f"datasets/{name}/snapshots/{snapshot_id}"


def tags_prefix(name: str) -> str:
    return f"datasets/{name}/tags/"


def tag_key(name: str, tag: str, number: int) -> str:
    """`number` grows with each change of the tag; the greatest one says what it means."""
    return f"datasets/{name}/tags/{tag}/{number:0{_GENERATION_DIGITS}d}"


def leases_prefix(name: str) -> str:
    return f"datasets/{name}/leases/"


def lease_key(name: str, lease_id: str, number: int) -> str:
    """`number` grows with each renewal."""
    return f"datasets/{name}/leases/{lease_id}/{number:0{_GENERATION_DIGITS}d}"


def chunk_prefix(name: str) -> str:
    return f"datasets/{name}/chunks/"
