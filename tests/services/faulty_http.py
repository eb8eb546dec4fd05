"""An HTTP proxy on loopback that misbehaves as told: stands between a store's client and a sound
server."""

from __future__ import annotations

import http.client
import socket
import struct
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

_HOP = frozenset({"connection", "transfer-encoding", "content-length", "keep-alive"})


@dataclass(frozen=True, slots=True)
class Asked:
    method: str
    path: str
    """With its query."""
    headers: Mapping[str, str]
    body: bytes = field(default=b"", repr=False)
    """What a fault may change on its way; the list of what was asked is without it."""


@dataclass(frozen=True, slots=True)
class Reply:
    status: int
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes = b""
    promised: int | None = None
    """What Content-Length says, if not the truth; the connection is closed after the body."""
    reset: bool = False
    """The connection is reset after the body."""
    stalls: bool = False
    """It is held open after the body, until the proxy ends."""
    unanswered: bool = False
    """The connection is closed without a byte of this."""


Fault = Callable[[Asked, Callable[[Asked], Reply]], Reply]
"""The reply to what was asked; its second argument asks the server, and only then."""


@dataclass(slots=True)
class FaultyProxy:
    port: int
    fault: Fault | None = None
    asked: list[Asked] = field(default_factory=list)
    over: threading.Event = field(default_factory=threading.Event)

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def fails(self, fault: Fault | None) -> None:
        """From now on, with the list of what was asked begun anew."""
        self.asked.clear()
        self.fault = fault


@contextmanager
def faulty_proxy(server: str) -> Iterator[FaultyProxy]:
    """In front of the server at this address."""
    backend = urlsplit(server).netloc

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True
        wbufsize = -1

        def answer(self) -> None:
            headers = {k.lower(): v for k, v in self.headers.items()}
            body = self.rfile.read(int(headers.get("content-length", 0)))
            asked = Asked(self.command, self.path, headers, body)
            proxy.asked.append(replace(asked, body=b""))

            def sound(asked: Asked) -> Reply:
                connection = http.client.HTTPConnection(backend, timeout=60)
                try:
                    sent = {k: v for k, v in asked.headers.items() if k not in _HOP}
                    connection.request(asked.method, asked.path, asked.body, sent)
                    answer = connection.getresponse()
                    kept = tuple(h for h in answer.getheaders() if h[0].lower() not in _HOP)
                    length = answer.getheader("content-length")
                    promised = int(length) if self.command == "HEAD" and length else None
                    return Reply(answer.status, kept, answer.read(), promised)
                finally:
                    connection.close()

            self.send(proxy.fault(asked, sound) if proxy.fault else sound(asked))

        do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = answer

        def send(self, reply: Reply) -> None:
            if reply.unanswered:
                self.close_connection = True
                return
            self.send_response(reply.status)
            for name, value in reply.headers:
                if name.lower() not in ("date", "server"):
                    self.send_header(name, value)
            length = len(reply.body) if reply.promised is None else reply.promised
            self.send_header("Content-Length", str(length))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(reply.body)
                self.close_connection |= len(reply.body) != length
            self.wfile.flush()
            if reply.stalls:
                proxy.over.wait()
            if reply.reset:
                self.connection.setsockopt(
                    socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0)
                )
                self.connection.close()
                self.close_connection = True

        def log_message(self, format: str, *arguments: object) -> None:
            pass

    class Server(ThreadingHTTPServer):
        daemon_threads = True
        request_queue_size = 64

        def handle_error(self, request: object, client_address: object) -> None:
            """Clients that give up are what this is for."""

    listening = Server(("127.0.0.1", 0), Handler)
    proxy = FaultyProxy(listening.server_address[1])
    thread = threading.Thread(target=listening.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield proxy
    finally:
        proxy.over.set()
        listening.shutdown()
        listening.server_close()
        thread.join()
