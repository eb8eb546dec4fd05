"""Tags of a request: for whom and for what it reads. A cache node's policy decides by them."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

from chunkstore.chunk_id import ChunkId


class RequestTags(NamedTuple):
    """The tags of a request for one chunk; a named tuple, since it is hashed at each request."""

    job: str = ""
    """The job for which the client reads; empty: none was named."""
    epoch: int = 0
    bucket: str = ""
    """The chunk's bucket, unique over all datasets; empty: the bucket of its dataset."""
    may_keep: bool = True
    """False if the client knows that the chunk is not worth caching."""


NO_TAGS = RequestTags()
"""The tags of a request that carries none."""

TagsOf: TypeAlias = Callable[[ChunkId], RequestTags]
"""A function that gives the tags of this process's requests for a chunk."""
