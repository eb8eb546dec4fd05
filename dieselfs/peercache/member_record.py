"""A member as plain values, for whatever keeps or carries it, and back again from what nobody vouches for."""

from __future__ import annotations

import re
from typing import Final

from dieselfs.peercache.members import Member
from dieselfs.peercache.runtime import PeerAddress

MAX_WEIGHT: Final = 1 << 40
MAX_NODE_BYTES: Final = 255
"""In UTF-8."""
_ID: Final = re.compile(r"[!-~]{1,64}")
_HOST: Final = re.compile(r"[!-~]{1,255}")


def member_fields(member: Member) -> list[str | int]:
    """For msgpack and JSON alike."""
    return [member.id, member.address.host, member.address.port, member.weight, member.node]


def member_from(fields: object) -> Member:
    """`ValueError` if these are not the fields of a member."""
    match fields:
        case [str(id), str(host), int(port), int(weight), str(node)] if (
            is_member_id(id)
            and _HOST.fullmatch(host)
            and type(port) is type(weight) is int  # a bool matches int
            and 0 < port < 1 << 16
            and 0 <= weight <= MAX_WEIGHT
            and node.isprintable()
            and len(node.encode()) <= MAX_NODE_BYTES
        ):
            return Member(id, PeerAddress(host, port), weight, node)
        case _:
            raise ValueError("not the record of a member")


def is_member_id(text: str) -> bool:
    return _ID.fullmatch(text) is not None
