"""One frame of each kind, and a whole handshake, of each version: docs/peer-protocol.md shows them,
and tests/golden/peer-frames-v1.json, -v2.json and -v3.json have them."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import numpy as np

from chunkstore.chunk_format import DatasetRef
from chunkstore.chunk_id import ChunkId
from chunkstore.chunk_source import ChunkRef, FileExtent
from dieselfs.cache.cluster.topic import CacheClusterTopic
from dieselfs.cache.ports.block import CacheBlock
from dieselfs.cache.ports.cached_chunks import NodeStatus, PolicyStatus
from dieselfs.cache.ports.members import Member
from dieselfs.cache.ports.request_tags import RequestTags
from dieselfs.cache.ports.runtime import PeerAddress
from dieselfs.cache.ports.secret import TaskSecret
from dieselfs.cache.wire.frames import encode_answer, encode_request
from dieselfs.cache.wire.handshake import ClientHandshake, ServerHandshake
from dieselfs.cache.wire.messages import (
    Answer,
    AskCached,
    AskPolicy,
    CachedBytes,
    ClientMessage,
    Data,
    Failed,
    Join,
    Leave,
    Members,
    NameTags,
    NotCached,
    Ping,
    PolicyReport,
    Pong,
    ReadBlock,
    ReadChunk,
    ReadFile,
    ReadRanges,
    Request,
    Working,
)

NUMBER: Final = 258
CHUNK: Final = ChunkRef(ChunkId(bytes(range(16))), 4160, 1 << 22)
OTHER: Final = ChunkRef(ChunkId(b"\xfe" * 16), 64, 1000)
LARGE: Final = ChunkRef(ChunkId(b"\xff" * 16), 1 << 20, 1 << 40)
BLOCK: Final = CacheBlock(LARGE, FileExtent(LARGE, 1 << 30, 1 << 24, 0x0102030405060708), 3)
NODE: Final = Member("node-1", PeerAddress("10.0.0.1", 7000), 16384, "gpu 1")
READER: Final = Member("rank-2", PeerAddress("fd00::2", 65535), 0)

RANGES: Final = ReadRanges(
    (CHUNK, OTHER),
    np.array([0, 1, 0], np.uint16),
    np.array([4096, 0, 0], np.uint32),
    np.array([4096, 1000, 5], np.uint32),
    True,
)
TAGS: Final = RequestTags("resnet50", 3, "imagenet:train/cat")
OTHER_TAGS: Final = RequestTags("", 0, "", False)
TAGGED: Final[dict[str, ClientMessage]] = {
    "NameTags": NameTags(7, TAGS),
    "NameTags of nobody": NameTags(0, OTHER_TAGS),
    "ReadFile with tags": ReadFile(CHUNK, 4096, 110_000, True, (7,)),
    "ReadRanges with tags": replace(RANGES, tags=(7, 2047)),
    "ReadChunk with tags": ReadChunk(CHUNK, False, (7,)),
    "ReadBlock with tags": ReadBlock(BLOCK, True, (7,)),
    "AskPolicy": AskPolicy(),
}
"""The messages to a server of version 2."""
REPORT: Final = PolicyReport(
    PolicyStatus("next-use", "lru", 1 << 34, 1 << 33, 1 << 32, 1 << 31, 5, 6, 7, 1 << 35, 9, 10)
)
REQUESTS: Final[dict[str, Request]] = {
    "ReadFile": ReadFile(CHUNK, 4096, 110_000, True),
    "ReadRanges": RANGES,
    "ReadChunk": ReadChunk(CHUNK, False),
    "ReadBlock": ReadBlock(BLOCK, True),
    "Ping": Ping(),
    "Join": Join(NODE),
    "Leave": Leave("node-1"),
}
BULK: Final = b"bytes of files"
ANSWERS: Final[dict[str, tuple[Answer, bytes]]] = {
    "Data": (Data(memoryview(BULK)), BULK),
    "NotCached": (NotCached(), b""),
    "Failed": (Failed("Unavailable: the store does not answer"), b""),
    "Working": (Working(), b""),
    "Pong": (Pong(NodeStatus(1 << 34, 1 << 33, 2048, 1 << 32, 1 << 31, 5, 6, 7, 8)), b""),
    "Members": (Members((NODE, READER)), b""),
    "Members of nobody": (Members(()), b""),
}
FETCHED: Final[dict[str, tuple[Answer, bytes]]] = {
    "Data of which bytes were fetched": (Data(memoryview(BULK), 4_198_464), BULK),
    "NotCached though bytes were fetched": (NotCached(4_198_464), b""),
    "CachedBytes": (CachedBytes(1 << 33), b""),
}
"""The answers of a server of version 3."""

SECRET: Final = TaskSecret(b"0123456789abcdef")
TASK: Final = "imagenet-epochs"


def client(
    secret: TaskSecret = SECRET,
    task: str = TASK,
    peer: str = "node-1",
    nonce: bytes = b"c" * 32,
    made: type[ClientHandshake] = ClientHandshake,
) -> ClientHandshake:
    return made(secret, task, "node-2 4711", peer, nonce)


def server(
    secret: TaskSecret = SECRET,
    task: str = TASK,
    me: str = "node-1",
    nonce: bytes = b"s" * 32,
    made: type[ServerHandshake] = ServerHandshake,
) -> ServerHandshake:
    return made(secret, task, me, nonce)


class OldClient(ClientHandshake):
    """The client of a release that speaks version 1 alone."""

    newest = 1


class OldServer(ServerHandshake):
    """The server of a release that speaks version 1 alone."""

    newest = 1


class SecondClient(ClientHandshake):
    """The client of a release that speaks versions 1 and 2."""

    newest = 2


class SecondServer(ServerHandshake):
    """The server of a release that speaks versions 1 and 2."""

    newest = 2


def session(asking: ClientHandshake, serving: ServerHandshake) -> dict[str, bytes]:
    """All frames of a handshake that both sides agree to."""
    hello = asking.hello()
    challenge = serving.challenge(hello)
    proof = asking.prove(challenge)
    welcome = serving.welcome(proof)
    asking.check_welcome(welcome)
    return {"hello": hello, "challenge": challenge, "proof": proof, "welcome": welcome}


def golden_frames() -> dict[str, bytes]:
    requests = {name: encode_request(NUMBER, request) for name, request in REQUESTS.items()}
    answers = {
        name: encode_answer(NUMBER, answer, len(bulk)) + bulk
        for name, (answer, bulk) in ANSWERS.items()
    }
    cache_cluster = CacheClusterTopic("images", DatasetRef("imagenet", bytes(range(16))))
    to_ring = {"hello to a cache cluster": client(task=str(cache_cluster), made=OldClient).hello()}
    shaken = session(client(made=OldClient), server(made=OldServer))
    return requests | answers | shaken | to_ring


def golden_frames_of_version_2() -> dict[str, bytes]:
    """Frames that version 1 does not have. The others are the same in both."""
    messages = {name: encode_request(NUMBER, message) for name, message in TAGGED.items()}
    shaken = session(client(made=SecondClient), server(made=SecondServer))
    return messages | {"PolicyReport": encode_answer(NUMBER, REPORT)} | shaken


def golden_frames_of_version_3() -> dict[str, bytes]:
    """Frames that version 2 does not have. The others are the same in both."""
    answers = {
        name: encode_answer(NUMBER, answer, len(bulk)) + bulk
        for name, (answer, bulk) in FETCHED.items()
    }
    asked = {"AskCached": encode_request(NUMBER, AskCached())}
    return asked | answers | session(client(), server())
