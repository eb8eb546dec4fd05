"""The envelope of small objects in the store: a magic, the format's version, a checksum at the end.

The checksum is the XXH3 of all bytes before it. docs/chunk-format.md defines the bytes.
"""

from __future__ import annotations

import struct
from typing import Any, Final

import xxhash

from chunkstore.errors import Corrupt

_CHECK_BYTES: Final = 8


def sealed(body: bytes) -> bytes:
    """Return the body with its checksum."""
    return body + xxhash.xxh3_64_digest(body)


def unsealed(
    data: bytes,
    fixed: struct.Struct,
    magic: bytes,
    version: int,
    what: str,
    kind: str,
    repair: str = "",
) -> tuple[bytes, list[Any]]:
    """Return the body of a sealed object, and those of its `fixed` fields that follow the version.

    Raises `Corrupt` if `what` is not `kind`, has a wrong checksum, or is of another release. The
    reason ends with `repair`, if that removes the cause.
    """
    body = data[:-_CHECK_BYTES]
    if len(data) < fixed.size + _CHECK_BYTES or not data.startswith(magic):
        raise Corrupt(f"the object of {what} is not {kind}{repair}")
    if xxhash.xxh3_64_digest(body) != data[-_CHECK_BYTES:]:
        raise Corrupt(f"the checksum of {what} is wrong{repair}")
    _, found, *fields = fixed.unpack_from(body)
    if found != version:
        raise Corrupt(f"{what} has format {found}; this release reads {version}")
    return body, fields
