"""How two sides of a connection show each other that they know the task's secret, before anything else is said. No I/O here.

    client                         server
      hello        ──────────▶                    versions, task, who I am, whom I want, nonce
                   ◀──────────   challenge        version, who I am, nonce
      proof        ──────────▶                    HMAC of "client" and all bytes of hello and challenge
                   ◀──────────   welcome          HMAC of "server" and the same bytes;  in place of an answer: refused

Both nonces are in what is proved, so a recorded proof is worth nothing in another connection; the role is in it, so one side's proof is not the other's; the
member asked for is in it, so a proof can't be handed on to another. The server proves itself last: who knows nothing is told nothing but why.

What goes in and out are whole frames, prefix and all; who reads them asks `bytes_that_follow` how many bytes follow a prefix. Law: docs/peer-protocol.md.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable, Sequence
from typing import Final

from dieselfs.errors import PeerRefused
from dieselfs.peercache.frame_fields import check_member_id, check_text
from dieselfs.peercache.frame_header import (
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
from dieselfs.peercache.members import MemberId
from dieselfs.peercache.messages import PROTOCOL_VERSION
from dieselfs.peercache.secret import TaskSecret

NONCE_BYTES: Final = 32
PROOF_BYTES: Final = 32
MAX_HANDSHAKE_BYTES: Final = 1024
"""Of one whole frame: all that is read of somebody who has proved nothing."""
MAX_NAME_BYTES: Final = 255
"""Of a task, and of a client."""
OLDEST_VERSION: Final = 1
"""That this release still speaks; the newest is `PROTOCOL_VERSION`."""

_HELLO: Final = lead_of(32, 6)
_CHALLENGE: Final = lead_of(33, 3)
_PROOF: Final = lead_of(34, 1)
_WELCOME: Final = lead_of(35, 1)
_REFUSED: Final = lead_of(36, 3)

_SECRET, _TASK, _VERSION, _MEMBER = "secret", "task", "version", "member"


def bytes_that_follow(prefix: Received) -> int:
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
        """`client`: my name, for the server's log. `peer`: whom I want. `nonce`: 32 fresh random bytes.

        Raises `BadFrame` for a name that is too long or not printable.
        """
        self._secret = secret
        self._peer = peer
        versions = (OLDEST_VERSION, PROTOCOL_VERSION)
        names = (_name(task), _name(client), check_member_id(peer))
        self._hello = frame(_HELLO, 0, (*versions, *names, _nonce(nonce)))
        self._transcript = b""

    def hello(self) -> bytes:
        return self._hello

    def prove(self, challenge: Received) -> bytes:
        version, member, nonce = _fields(challenge, _CHALLENGE)
        if not OLDEST_VERSION <= _integer(version) <= PROTOCOL_VERSION:
            raise BadFrame("a version that was not offered")
        _nonce(nonce)
        if check_member_id(member) != self._peer:
            raise _refused(_MEMBER)
        self._transcript = self._hello + bytes(challenge)
        return frame(_PROOF, 0, (self._secret.proof(b"client", self._transcript),))

    def check_welcome(self, welcome: Received) -> None:
        """Returns if the server knows the secret."""
        [proof] = _fields(welcome, _WELCOME)
        if not self._transcript:
            raise BadFrame("a welcome before the challenge")
        if not _is_proof(proof, self._secret.proof(b"server", self._transcript)):
            raise _refused(_SECRET)


class ServerHandshake:
    """One connection's, its methods called once each and in order. Both raise `PeerRefused`, or `BadFrame` for what is no frame."""

    def __init__(
        self,
        secret: TaskSecret,
        task: str,
        me: MemberId,
        nonce: bytes,
        serves: Callable[[str], bool] = lambda task: False,
    ) -> None:
        """`nonce`: 32 fresh random bytes. `serves`: of what else than `task` a client may ask; it is asked by strangers, too."""
        self.client: str = ""
        """Who it says it is: printable, at most 255 bytes. True once `welcome` has returned."""
        self.task: str = task
        """What it asks for. True once `welcome` has returned."""
        self.refusal: bytes = b""
        """A frame to send before closing, once `PeerRefused` was raised; empty if nothing is to be said."""
        self._secret = secret
        self._task, self._serves = _name(task), serves
        self._me = check_member_id(me)
        self._nonce = _nonce(nonce)
        self._transcript = b""

    def challenge(self, hello: Received) -> bytes:
        lead, fields = _decode(hello)
        # A later version may add fields behind these six: a hello is sent before it is known what the other side speaks.
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
    """Says why, and what to do, but nothing of what was proved. Versions are those of the other side."""
    match reason:
        case "secret":
            return PeerRefused(
                "the two sides do not know the same secret",
                "give all nodes of the task the same secret (DIESELFS_TASK_SECRET, --secret-file), and all who use a cache cluster its own (DIESELFS_CACHE_CLUSTER_SECRET, --cache-cluster-secret-file)",
            )
        case "task":
            return PeerRefused(
                "the two sides are of different tasks, or of different cache clusters",
                "give all nodes the same --task NAME, and all who use a cache cluster the cache cluster's name",
            )
        case "version":
            return PeerRefused(
                f"the other side speaks versions {oldest} to {newest} of the peer protocol, this one {OLDEST_VERSION} to {PROTOCOL_VERSION}",
                "run the same release on all nodes of a task",
            )
        case "member":
            return PeerRefused("the member that was asked for does not listen there")
    raise BadFrame("refused for no reason that is known")


def _fields(received: Received, lead: bytes) -> Sequence[Scalar]:
    """The fields of the frame that is expected next. Raises `PeerRefused` if it is a refusal, `BadFrame` for any other."""
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
