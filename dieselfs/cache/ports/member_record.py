"""A member as plain values, for anything that stores or sends it, and back with checks.

Values that come back are not trusted.
"""

from __future__ import annotations

import re
from typing import Final

from dieselfs.cache.ports.members import Member
from dieselfs.cache.ports.runtime import PeerAddress

MAX_WEIGHT: Final = 1 << 40
MAX_NODE_BYTES: Final = 255
"""The limit of a host's name in UTF-8."""
_ID: Final = re.compile(r"[!-~]{1,64}")
_HOST: Final = re.compile(r"[!-~]{1,255}")


def member_fields(member: Member) -> list[str | int]:
    """Return the fields of a member, fit for msgpack and JSON alike."""
    return [member.id, member.address.host, member.address.port, member.weight, member.node]


def member_from(fields: object) -> Member:
    """Return the member that these fields describe. Raises `ValueError` if they are no member's."""
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
            raise ValueError("the record of a member is invalid")


def is_member_id(text: str) -> bool:
    """Return whether the text is 1 to 64 printable ASCII characters without blanks."""
    return _ID.fullmatch(text) is not None
