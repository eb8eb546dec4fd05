"""A member as plain values, for anything that stores or sends it, and back with checks.

Values that come back are not trusted.
"""

from __future__ import annotations

from typing import Annotated, Final, TypeAlias

from msgspec import Meta, convert

from dieselfs.cache.ports.members import Member
from dieselfs.cache.ports.runtime import PeerAddress

MAX_NODE_BYTES: Final = 255
"""The limit of a host's name in UTF-8."""

MemberName: TypeAlias = Annotated[str, Meta(pattern=r"\A[!-~]{1,64}\Z")]
"""A `MemberId` that is checked."""
MemberRow: TypeAlias = tuple[
    MemberName,
    Annotated[str, Meta(pattern=r"\A[!-~]{1,255}\Z")],
    Annotated[int, Meta(ge=1, le=65535)],
    Annotated[int, Meta(ge=0, le=1 << 40)],
    str,
]
"""Id, host, port, weight and node of a member, fit for msgpack and JSON alike."""


def member_fields(member: Member) -> MemberRow:
    """Return the fields of a member. Raises `ValueError` if it is out of bounds."""
    fields = member.id, member.address.host, member.address.port, member.weight, member.node
    member_from(fields)
    return fields


def member_from(fields: object) -> Member:
    """Return the member that these fields describe. Raises `ValueError` if they are no member's."""
    id, host, port, weight, node = convert(fields, MemberRow)
    return Member(id, PeerAddress(host, port), weight, printable(node, MAX_NODE_BYTES))


def checked_id(id: object) -> str:
    """Return a value if it is a member's id. Raises `ValueError`."""
    return convert(id, MemberName)


def printable(text: str, limit: int) -> str:
    """Return a text if it is printable and has at most `limit` bytes. Raises `ValueError`."""
    if not text.isprintable() or len(text.encode()) > limit:
        raise ValueError(f"not a printable text of at most {limit} bytes")
    return text
