"""Checks that a listing has what is known to exist; whatever deletes asks for them first.

A key that a listing lacks proves nothing: a cache or a broken server may call a part of it the
whole. The objects that commits, tags and marks name are looked for one by one where a listing lacks
them. If one is there, the listing is not to be trusted, and nothing may be deleted by it.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterable
from itertools import count

from chunkstore.chunk_id import ChunkId
from chunkstore.commit_log import Commit
from chunkstore.errors import Untrusted
from chunkstore.object_keys import chunk_key, commit_key, commit_prefix
from chunkstore.stores.object_store import ObjectStore, exists

_GENERATION = re.compile(r"[0-9]{16}")


def check_listed(store: ObjectStore, lacking: Iterable[str]) -> None:
    """Raise `Untrusted` if there is an object with one of the keys that a listing lacked.

    The objects, if any, were stored before the listing. Costs one request for each key.
    """
    for key in lacking:
        if exists(store, key):
            raise Untrusted(
                f"a listing of the store lacks {key}, which is there: nothing is deleted by it; "
                "check the store, and proxies and caches in front of it"
            )


def check_chunks_listed(
    store: ObjectStore, name: str, commits: Iterable[Commit], listed: Container[ChunkId]
) -> None:
    """Raise `Untrusted` if a listing that was made later lacks a chunk that `commits` keep."""
    live: dict[ChunkId, None] = {}
    for commit in commits:
        live.update((ref.id, None) for ref in commit.added)
        for chunk_id in commit.retired:
            live.pop(chunk_id, None)
    lacking = (chunk_key(name, chunk_id) for chunk_id in live if chunk_id not in listed)
    check_listed(store, lacking)


def check_commits_listed(store: ObjectStore, name: str) -> None:
    """Raise `Untrusted` if the listing of a dataset's commits lacks one. One listing, one request.

    Commits are numbered without gaps, so the first number that is not listed is looked for.
    """
    if exists(store, _first_unlisted(store, name)):
        key = _first_unlisted(store, name)  # unless it was committed just now
        check_listed(store, [key])


def _first_unlisted(store: ObjectStore, name: str) -> str:
    found = {info.key.rpartition("/")[2] for info in store.list(commit_prefix(name))}
    known = {int(text) for text in found if _GENERATION.fullmatch(text)}
    return commit_key(name, next(number for number in count(1) if number not in known))
