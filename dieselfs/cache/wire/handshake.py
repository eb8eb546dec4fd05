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
from typing import Annotated, Any, ClassVar, Final, Literal, TypeAlias

from msgspec import Meta

from dieselfs.cache.ports.member_record import MemberName, printable
from dieselfs.cache.ports.members import MemberId
from dieselfs.cache.ports.secret import TaskSecret
from dieselfs.cache.wire.frame_header import (
    PREFIX_BYTES,
    BadFrame,
    Received,
    decode_fields,
    decode_lead,
    decode_prefix,
    decoder_of,
    frame,
    lead_of,
)
from dieselfs.cache.wire.messages import PROTOCOL_VERSION
from dieselfs.errors import PeerRefused

NONCE_BYTES: Final = 32
MAX_HANDSHAKE_BYTES: Final = 1024
"""The limit of one whole frame. Nothing longer is read from a side that has proved nothing."""
MAX_NAME_BYTES: Final = 255
"""The limit of a task's name, and of a client's."""
OLDEST_VERSION: Final = 1
"""The oldest version that this release speaks; the newest is `PROTOCOL_VERSION`."""

_Version: TypeAlias = Annotated[int, Meta(ge=0, lt=1 << 16)]
_Reason: TypeAlias = Literal["secret", "task", "version", "member"]
_Bytes32: TypeAlias = Annotated[bytes, Meta(min_length=32, max_length=32)]
_Form: TypeAlias = tuple[int, tuple[Any, ...]]
"""The kind of a frame, and the types of its fields."""

_OFFER: Final[_Form] = 32, (_Version, _Version)
"""The first fields of a hello, behind which another version may have others."""
_HELLO: Final[_Form] = 32, (_Version, _Version, str, str, MemberName, _Bytes32)
_CHALLENGE: Final[_Form] = 33, (_Version, MemberName, _Bytes32)
_PROOF: Final[_Form] = 34, (_Bytes32,)
_WELCOME: Final[_Form] = 35, (_Bytes32,)
_REFUSED: Final[_Form] = 36, (_Reason, _Version, _Version)
_GROWING: Final = _OFFER, _HELLO, _REFUSED
"""The frames to which a later version may add fields."""


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

    newest: ClassVar[int] = PROTOCOL_VERSION
    """The newest version that it offers; tests lower it to act as an older release."""

    def __init__(
        self, secret: TaskSecret, task: str, client: str, peer: MemberId, nonce: bytes
    ) -> None:
        """`client` is this process's name for the server's log; `peer` is the member to reach.

        `nonce` is 32 fresh random bytes. Raises `BadFrame` for a name that is too long or not
        printable.
        """
        self.version: int = OLDEST_VERSION
        """The version that both sides speak. It is proved once `check_welcome` has returned."""
        self._secret = secret
        self._peer = peer
        names = (_name(task), _name(client), peer)
        self._hello = _made(_HELLO, OLDEST_VERSION, self.newest, *names, nonce)
        self._transcript = b""

    def hello(self) -> bytes:
        """Return the first frame."""
        return self._hello

    def prove(self, challenge: Received) -> bytes:
        """Check the challenge, and return the frame that proves knowledge of the secret."""
        version, member, _ = _answer(challenge, _CHALLENGE)
        if not OLDEST_VERSION <= version <= self.newest:
            raise BadFrame("a version that was not offered")
        if member != self._peer:
            raise _refused("member")
        self.version = version
        self._transcript = self._hello + bytes(challenge)
        return _made(_PROOF, self._secret.proof(b"client", self._transcript))

    def check_welcome(self, welcome: Received) -> None:
        """Return if the server knows the secret; raise `PeerRefused` if it does not."""
        [proof] = _answer(welcome, _WELCOME)
        if not self._transcript:
            raise BadFrame("a welcome before the challenge")
        if not hmac.compare_digest(proof, self._secret.proof(b"server", self._transcript)):
            raise _refused("secret")


class ServerHandshake:
    """The server's side of one connection's handshake.

    Its methods are called once each and in order. Both raise `PeerRefused`, or `BadFrame` for bytes
    that are no frame.
    """

    newest: ClassVar[int] = PROTOCOL_VERSION
    """The newest version that it takes; tests lower it to act as an older release."""

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
        self.version: int = OLDEST_VERSION
        """The version that both sides speak. It is proved once `welcome` has returned."""
        self.refusal: bytes = b""
        """A frame to send before closing, set when `PeerRefused` is raised; empty if there is none.
        """
        self._secret = secret
        self._task, self._serves = _name(task), serves
        self._me, self._nonce = me, nonce
        _made(_CHALLENGE, self.newest, me, nonce)  # refuses them if they are out of bounds
        self._transcript = b""

    def challenge(self, hello: Received) -> bytes:
        """Return the frame that answers a hello."""
        oldest, newest = _fields(hello, _OFFER)
        version = min(newest, self.newest)
        if version < max(oldest, OLDEST_VERSION):
            raise self._refuse("version", oldest, newest)
        _, _, task, client, peer, _ = _fields(hello, _HELLO)
        task, client = _name(task), _name(client)
        if task != self._task and not self._serves(task):
            raise self._refuse("task")
        if peer != self._me:
            raise self._refuse("member")
        self.client, self.task, self.version = client, task, version
        challenge = _made(_CHALLENGE, version, self._me, self._nonce)
        self._transcript = bytes(hello) + challenge
        return challenge

    def welcome(self, proof: Received) -> bytes:
        """Check the client's proof, and return the frame that proves this side's knowledge."""
        [found] = _fields(proof, _PROOF)
        transcript, self._transcript = self._transcript, b""  # one attempt a connection
        if not transcript:
            raise BadFrame("a proof before the challenge")
        if not hmac.compare_digest(found, self._secret.proof(b"client", transcript)):
            raise self._refuse("secret")
        return _made(_WELCOME, self._secret.proof(b"server", transcript))

    def _refuse(self, reason: _Reason, oldest: int = 0, newest: int = 0) -> PeerRefused:
        self.refusal = _made(_REFUSED, reason, OLDEST_VERSION, self.newest)
        return _refused(reason, oldest, newest)


def _refused(reason: _Reason, oldest: int = 0, newest: int = 0) -> PeerRefused:
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


def _made(form: _Form, *fields: object) -> bytes:
    """Return a frame. Raises `BadFrame` if the other side would refuse it."""
    made = frame(lead_of(form[0], len(fields)), 0, fields)
    _fields(made, form)
    return made


def _answer(received: Received, form: _Form) -> Sequence[Any]:
    """Return the fields of the server's next frame. Raises `PeerRefused`, `BadFrame`."""
    if received[PREFIX_BYTES + 1 : PREFIX_BYTES + 2] == bytes([_REFUSED[0]]):
        raise _refused(*_fields(received, _REFUSED))
    return _fields(received, form)


def _fields(received: Received, form: _Form) -> Sequence[Any]:
    """Return the fields of the frame that comes next, without those that a later version adds."""
    if len(received) > MAX_HANDSHAKE_BYTES:
        raise BadFrame("no frame of a handshake is so long")
    if bytes_that_follow(received) != len(received) - PREFIX_BYTES:
        raise BadFrame("a frame of another length than it says")
    header, (kind, types) = received[PREFIX_BYTES:], form
    lead, number = decode_lead(header, decode_prefix(received)[2])
    added = (lead[0] & 0x0F) - 2 - len(types)
    if lead != lead_of(kind, len(types) + added) or number or (added and form not in _GROWING):
        raise BadFrame("not the frame that comes next in a handshake")
    return decode_fields(header, decoder_of((*types, *(Any,) * added)))[: len(types)]


def _name(text: str) -> str:
    try:
        return printable(text, MAX_NAME_BYTES)
    except ValueError as error:
        raise BadFrame(str(error)) from None
