"""The published order: the buckets that a reader reads, and its chunks in the order of first use.

It never changes, and its id is the hash of its bytes. So it is stored once however often records
name it, and whoever fetches it verifies it. A reader without a known order publishes one without
keys. Bytes of version 1: a header, the buckets as JSON, 4 bytes a key (little-endian).
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Final

import msgspec
import numpy as np
import numpy.typing as npt
import xxhash
from msgspec import Meta

_HEADER: Final = struct.Struct("<8sII")
"""The header: magic with the version, bytes of the buckets, number of keys."""
_MAGIC: Final = b"dslordr1"
MAX_BUCKETS: Final = 8192
"""A request history counts no more."""
MAX_BUCKET_BYTES: Final = 1 << 20
MAX_KEYS: Final = 2 << 20
"""Chunks of 8 TiB: an order has 8 MiB at most, and what is behind that counts as unknown."""
MAX_ORDER_BYTES: Final = _HEADER.size + MAX_BUCKET_BYTES + 4 * MAX_KEYS
_buckets_decoder: Final = msgspec.json.Decoder(
    Annotated[list[Annotated[str, Meta(min_length=1)]], Meta(max_length=MAX_BUCKETS)]
)


@dataclass(frozen=True, eq=False)
class PublishedOrder:
    """What a reader reads."""

    buckets: tuple[str, ...]
    """The buckets, in the order in which the reader is done with them."""
    keys: npt.NDArray[np.uint32]
    """The low 32 bits of the segments' keys (`tags.key_of`), in the order of their first use."""

    @classmethod
    def of(cls, buckets: Sequence[str], keys: npt.NDArray[np.uint32]) -> PublishedOrder:
        """Return the order, cut where it is too long."""
        return cls(tuple(buckets[:MAX_BUCKETS]), keys[:MAX_KEYS])

    @cached_property
    def content(self) -> bytes:
        """The order as bytes."""
        buckets = msgspec.json.encode(self.buckets)
        header = _HEADER.pack(_MAGIC, len(buckets), len(self.keys))
        return header + buckets + self.keys.astype("<u4").tobytes()

    @cached_property
    def id(self) -> str:
        """The hash of the bytes, as 32 hexadecimal digits."""
        return xxhash.xxh3_128_hexdigest(self.content)

    @property
    def size_bytes(self) -> int:
        """The bytes that the order takes in memory, about."""
        return 4 * len(self.keys) + 100 * len(self.buckets)


def decoded_order(content: bytes, id: str) -> PublishedOrder:
    """Return the order of that id. Raises `ValueError` if these are not its bytes."""
    if len(content) > MAX_ORDER_BYTES or xxhash.xxh3_128_hexdigest(content) != id:
        raise ValueError("the bytes are not those of its id")
    if len(content) < _HEADER.size:
        raise ValueError("the order is too short")
    magic, buckets_bytes, keys = _HEADER.unpack_from(content)
    keys_at = _HEADER.size + buckets_bytes
    if magic != _MAGIC or len(content) != keys_at + 4 * keys:
        raise ValueError("the order is damaged, or of another version")
    try:
        buckets = _buckets_decoder.decode(content[_HEADER.size : keys_at])
    except msgspec.DecodeError as error:
        raise ValueError(str(error)) from error
    found = np.frombuffer(content, "<u4", keys, keys_at).astype(np.uint32, copy=False)
    return PublishedOrder(tuple(buckets), found)
