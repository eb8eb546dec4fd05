"""A peer that proves to be of the task, and then does what a test says."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial

from dieselfs.cache.ports.members import Member
from dieselfs.cache.ports.runtime import PeerAddress, Running, Runtime, Stream
from dieselfs.cache.ports.secret import TaskSecret
from dieselfs.cache.wire.frame_stream import FrameReceiver, receive_greeting
from dieselfs.cache.wire.frames import decode_request, encode_answer
from dieselfs.cache.wire.handshake import NONCE_BYTES, ServerHandshake
from dieselfs.cache.wire.messages import Answer, Data, Request
from dieselfs.cache.wire.os_runtime import OperatingSystem
from tests.eventually import PATIENCE_S

SECRET = TaskSecret(b"a secret of the tests")
TASK = "task"
OPERATING_SYSTEM = OperatingSystem()
LOOPBACK = PeerAddress("127.0.0.1", 0)
SOON_S = PATIENCE_S


class Conversation:
    """One connection, seen by the peer."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._frames = FrameReceiver(stream, of_requests=True)

    def receive(self) -> tuple[int, Request]:
        header, checksum, _ = self._frames.header(SOON_S)
        return decode_request(header, checksum)

    def send(self, *buffers: bytes) -> None:
        self._stream.send(buffers, SOON_S)

    def answer(self, number: int, answer: Answer) -> None:
        bulk = bytes(answer.bulk) if isinstance(answer, Data) else b""
        self.send(encode_answer(number, answer, len(bulk)), bulk)


@contextmanager
def scripted_peer(
    *scripts: Callable[[Conversation], None],
    runtime: Runtime = OPERATING_SYSTEM,
    listen: PeerAddress = LOOPBACK,
) -> Iterator[Member]:
    """Each connection follows the next script, and the last one all that come after, until it
    returns or the connection ends."""
    listener = runtime.listen(listen)
    left = list(scripts)
    streams: list[Stream] = []
    threads: list[Running] = []

    def serve(stream: Stream, script: Callable[[Conversation], None]) -> None:
        with suppress(OSError):
            deadline = runtime.now() + SOON_S
            nonce = runtime.random_bytes(NONCE_BYTES)
            handshake = ServerHandshake(SECRET, TASK, "peer", nonce)
            hello = receive_greeting(runtime, stream, deadline)
            stream.send((handshake.challenge(hello),), SOON_S)
            proof = receive_greeting(runtime, stream, deadline)
            stream.send((handshake.welcome(proof),), SOON_S)
            script(Conversation(stream))
        stream.close()

    def accept() -> None:
        with suppress(OSError):
            while True:
                stream = listener.accept()
                streams.append(stream)
                script = left.pop(0) if len(left) > 1 else left[0]
                threads.append(runtime.start(partial(serve, stream, script), "serves"))

    accepting = runtime.start(accept, "accepts")
    try:
        yield Member("peer", listener.address, 1)
    finally:
        listener.close()
        assert accepting.join(SOON_S)
        for stream in streams:
            stream.close()
        assert all([thread.join(SOON_S) for thread in threads])
