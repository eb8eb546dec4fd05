"""How two sides of a connection show each other that they know the task's secret, before anything else is said. No I/O here.

    client                         server
      hello        ──────────▶                    versions, task, who I am, whom I want, nonce
                   ◀──────────   challenge        version, who I am, nonce
      proof        ──────────▶
                   ◀──────────   welcome          its proof;  at any point instead: refused

What goes in and out are whole frames, prefix and all; who reads them asks `following_bytes` how many bytes follow a prefix.
"""

from __future__ import annotations

from typing import Final

from dieselfs.peercache.frame_header import PREFIX_BYTES, BadFrame, Received, decode_prefix
from dieselfs.peercache.members import MemberId
from dieselfs.peercache.secret import TaskSecret

NONCE_BYTES: Final = 32
MAX_HANDSHAKE_BYTES: Final = 1024
"""Of one whole frame: all that is read of somebody who has proved nothing."""


def following_bytes(prefix: Received) -> int:
    """How many bytes follow the 16 of a handshake's prefix. Raises `BadFrame` if it is not one."""
    header_bytes, bulk_bytes, _ = decode_prefix(prefix)
    if bulk_bytes or PREFIX_BYTES + header_bytes > MAX_HANDSHAKE_BYTES:
        raise BadFrame("no frame of a handshake is so long")
    return header_bytes


class ClientHandshake:
    """One connection's, its methods called once each and in order. All that receive raise `PeerRefused`, or `BadFrame` for what is no frame."""

    def __init__(
        self, secret: TaskSecret, task: str, client: str, peer: MemberId, nonce: bytes
    ) -> None:
        """`client`: my name, for the server's log. `peer` "": whichever member listens there; see `peer` afterwards. `nonce`: 32 fresh random bytes."""
        self.peer: MemberId = peer
        raise NotImplementedError

    def hello(self) -> bytes:
        raise NotImplementedError

    def prove(self, challenge: Received) -> bytes:
        raise NotImplementedError

    def check_welcome(self, welcome: Received) -> None:
        """Returns if the server knows the secret."""
        raise NotImplementedError


class ServerHandshake:
    """One connection's, its methods called once each and in order. Both raise `PeerRefused`, or `BadFrame` for what is no frame."""

    def __init__(self, secret: TaskSecret, task: str, me: MemberId, nonce: bytes) -> None:
        """`nonce`: 32 fresh random bytes."""
        self.client: str = ""
        """Who it says it is: printable, at most 255 bytes. True once `welcome` has returned."""
        self.refusal: bytes = b""
        """A frame to send before closing, once `PeerRefused` was raised; empty if nothing is to be said."""
        raise NotImplementedError

    def challenge(self, hello: Received) -> bytes:
        raise NotImplementedError

    def welcome(self, proof: Received) -> bytes:
        raise NotImplementedError
