"""The handshake, in which both sides of a connection prove that they know the task's secret.

It comes before any other message. No I/O here.

    client                    server
      hello     ──────────▶               versions, task, client, member wanted, nonce
                ◀──────────   challenge   version, member, nonce
      proof     ──────────▶               HMAC of "client" and all bytes of hello and challenge
                ◀──────────   welcome     HMAC of "server" and the same bytes

The server may send `refused` in place of an answer.

A proof covers both nonces, so a recorded proof is worth nothing in another connection. It covers
the role, so one side's proof is not the other's. It covers the member asked for, so a proof can't
be passed on to another member. The server proves itself last: a client without the secret learns
nothing but the reason of the refusal.

Inputs and outputs are whole frames with their prefixes; `bytes_that_follow` says how many bytes
follow a prefix. The specification is docs/peer-protocol.md.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable, Sequence
from typing import Final

from dieselfs.cache.ports.members import MemberId
from dieselfs.cache.ports.secret import TaskSecret
from dieselfs.cache.wire.frame_fields import check_member_id, check_text
from dieselfs.cache.wire.frame_header import (
    PREFIX_BYTES,
    BadFrame,
    Received,
    Scalar,
    decode_fields,
    decode_lead,
    decode_prefix,
    frame,
    lead_of,
)
from dieselfs.cache.wire.messages import PROTOCOL_VERSION
from dieselfs.errors import PeerRefused

NONCE_BYTES: Final = 32
PROOF_BYTES: Final = 32
MAX_HANDSHAKE_BYTES: Final = 1024
"""The limit of one whole frame. Nothing longer is read from a side that has proved nothing."""
MAX_NAME_BYTES: Final = 255
"""The limit of a task's name, and of a client's."""
OLDEST_VERSION: Final = 1
"""The oldest version that this release speaks; the newest is `PROTOCOL_VERSION`."""

_HELLO: Final = lead_of(32, 6)
_CHALLENGE: Final = lead_of(33, 3)
_PROOF: Final = lead_of(34, 1)
_WELCOME: Final = lead_of(35, 1)
_REFUSED: Final = lead_of(36, 3)

_SECRET, _TASK, _VERSION, _MEMBER = "secret", "task", "version", "member"


def bytes_that_follow(prefix: Received) -> int:
    """Return how many bytes follow the 16 of a handshake's prefix.

    Raises `BadFrame` if it is no prefix of a handshake.
    """
    header_bytes, bulk_bytes, _ = decode_prefix(prefix)
    if bulk_bytes or PREFIX_BYTES + header_bytes > MAX_HANDSHAKE_BYTES:
        raise BadFrame("no frame of a handshake is so long")
    return header_bytes


class ClientHandshake:
    """The client's side of one connection's handshake.

    Its methods are called once each and in order. Those that receive a frame raise `PeerRefused`,
    or `BadFrame` for bytes that are no frame.
    """

    def __init__(
        self, secret: TaskSecret, task: str, client: str, peer: MemberId, nonce: bytes
    ) -> None:
        """`client` is this process's name for the server's log; `peer` is the member to reach.

        `nonce` is 32 fresh random bytes. Raises `BadFrame` for a name that is too long or not
        printable.
        """
        self._secret = secret
        self._peer = peer
        versions = (OLDEST_VERSION, PROTOCOL_VERSION)
        names = (_name(task), _name(client), check_member_id(peer))
        self._hello = frame(_HELLO, 0, (*versions, *names, _nonce(nonce)))
        self._transcript = b""

    def hello(self) -> bytes:
        """Return the first frame."""
        return self._hello

    def prove(self, challenge: Received) -> bytes:
        """Check the challenge, and return the frame that proves knowledge of the secret."""
        version, member, nonce = _fields(challenge, _CHALLENGE)
        if not OLDEST_VERSION <= _integer(version) <= PROTOCOL_VERSION:
            raise BadFrame("a version that was not offered")
        _nonce(nonce)
        if check_member_id(member) != self._peer:
            raise _refused(_MEMBER)
        self._transcript = self._hello + bytes(challenge)
        return frame(_PROOF, 0, (self._secret.proof(b"client", self._transcript),))

    def check_welcome(self, welcome: Received) -> None:
        """Return if the server knows the secret; raise `PeerRefused` if it does not."""
        [proof] = _fields(welcome, _WELCOME)
        if not self._transcript:
            raise BadFrame("a welcome before the challenge")
        if not _is_proof(proof, self._secret.proof(b"server", self._transcript)):
            raise _refused(_SECRET)


class ServerHandshake:
    """The server's side of one connection's handshake.

    Its methods are called once each and in order. Both raise `PeerRefused`, or `BadFrame` for bytes
    that are no frame.
    """

    def __init__(
        self,
        secret: TaskSecret,
        task: str,
        me: MemberId,
        nonce: bytes,
        serves: Callable[[str], bool] = lambda task: False,
    ) -> None:
        """`nonce` is 32 fresh random bytes.

        `serves` says for which names besides `task` a client may ask. Clients that have proved
        nothing cause calls of it, too.
        """
        self.client: str = ""
        """The name that the client gives itself: printable, at most 255 bytes.

        It is proved once `welcome` has returned.
        """
        self.task: str = task
        """The task that the client asks for. It is proved once `welcome` has returned."""
        self.refusal: bytes = b""
        """A frame to send before closing, set when `PeerRefused` is raised; empty if there is none.
        """
        self._secret = secret
        self._task, self._serves = _name(task), serves
        self._me = check_member_id(me)
        self._nonce = _nonce(nonce)
        self._transcript = b""

    def challenge(self, hello: Received) -> bytes:
        """Return the frame that answers a hello."""
        lead, fields = _decode(hello)
        # A later version may add fields behind these six: a client sends its hello before it knows
        # the other side's version.
        if lead[1] != _HELLO[1] or len(fields) < 6:
            raise BadFrame("not a hello")
        oldest, newest = map(_integer, fields[:2])
        version = min(newest, PROTOCOL_VERSION)
        if version < max(oldest, OLDEST_VERSION):
            raise self._refuse(_VERSION, oldest, newest)
        task, client, peer = _name(fields[2]), _name(fields[3]), check_member_id(fields[4])
        _nonce(fields[5])
        if task != self._task and not self._serves(task):
            raise self._refuse(_TASK)
        if peer != self._me:
            raise self._refuse(_MEMBER)
        self.client, self.task = client, task
        challenge = frame(_CHALLENGE, 0, (version, self._me, self._nonce))
        self._transcript = bytes(hello) + challenge
        return challenge

    def welcome(self, proof: Received) -> bytes:
        """Check the client's proof, and return the frame that proves this side's knowledge."""
        [found] = _fields(proof, _PROOF)
        transcript, self._transcript = self._transcript, b""  # one attempt a connection
        if not transcript:
            raise BadFrame("a proof before the challenge")
        if not _is_proof(found, self._secret.proof(b"client", transcript)):
            raise self._refuse(_SECRET)
        return frame(_WELCOME, 0, (self._secret.proof(b"server", transcript),))

    def _refuse(self, reason: str, oldest: int = 0, newest: int = 0) -> PeerRefused:
        self.refusal = frame(_REFUSED, 0, (reason, OLDEST_VERSION, PROTOCOL_VERSION))
        return _refused(reason, oldest, newest)


def _refused(reason: str, oldest: int = 0, newest: int = 0) -> PeerRefused:
    """Return the error with its reason and advice, but with nothing of what was proved.

    The versions are those of the other side.
    """
    match reason:
        case "secret":
            return PeerRefused(
                "the two sides do not know the same secret",
                "give all nodes of the task the same secret (DIESELFS_TASK_SECRET, "
                "--secret-file), and all nodes and clients of a cache cluster its own "
                "(DIESELFS_CACHE_CLUSTER_SECRET, --cache-cluster-secret-file)",
            )
        case "task":
            return PeerRefused(
                "the two sides are of different tasks, or of different cache clusters",
                "give all nodes the same --task NAME, and all nodes and clients of a cache "
                "cluster its name",
            )
        case "version":
            return PeerRefused(
                f"the other side speaks versions {oldest} to {newest} of the peer protocol, "
                f"this one {OLDEST_VERSION} to {PROTOCOL_VERSION}",
                "run the same release on all nodes of a task",
            )
        case "member":
            return PeerRefused("another member listens at this address")
    raise BadFrame("the other side refused for an unknown reason")


def _fields(received: Received, lead: bytes) -> Sequence[Scalar]:
    """Return the fields of the frame that is expected next.

    Raises `PeerRefused` if the frame is a refusal, `BadFrame` for any other.
    """
    found, fields = _decode(received)
    if found[1] == _REFUSED[1] and lead != _PROOF and len(fields) >= 3:
        reason, oldest, newest = fields[:3]
        raise _refused(check_text(reason, 16), _integer(oldest), _integer(newest))
    if found != lead:
        raise BadFrame("not the frame that comes next in a handshake")
    return fields


def _decode(received: Received) -> tuple[bytes, Sequence[Scalar]]:
    if len(received) > MAX_HANDSHAKE_BYTES:
        raise BadFrame("no frame of a handshake is so long")
    if bytes_that_follow(received) != len(received) - PREFIX_BYTES:
        raise BadFrame("a frame of another length than it says")
    header = received[PREFIX_BYTES:]
    lead, number = decode_lead(header, decode_prefix(received)[2])
    count = (lead[0] & 0x0F) - 2
    if lead != lead_of(lead[1], count) or number:
        raise BadFrame("not the header of a frame")
    return lead, decode_fields(header, count)


def _is_proof(found: Scalar, right: bytes) -> bool:
    if not isinstance(found, bytes) or len(found) != PROOF_BYTES:
        raise BadFrame("not a proof")
    return hmac.compare_digest(found, right)


def _nonce(value: Scalar) -> bytes:
    if not isinstance(value, bytes) or len(value) != NONCE_BYTES:
        raise BadFrame("not a nonce")
    return value


def _name(value: Scalar) -> str:
    name = check_text(value, MAX_NAME_BYTES)
    if not name.isprintable():
        raise BadFrame("not a printable name")
    return name


def _integer(value: Scalar) -> int:
    if type(value) is not int or not 0 <= value < 1 << 16:
        raise BadFrame("not a version")
    return value
