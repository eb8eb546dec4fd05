"""A double of Azure's blob service on loopback, with its blobs in memory: the few calls that a
store makes, with their signatures.

It was compared with Azurite, Microsoft's own emulator, by the same contract.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import itertools
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Final
from urllib.parse import parse_qsl, unquote, urlsplit
from xml.sax.saxutils import escape

_DATE: Final = "Thu, 01 Jan 2026 00:00:00 GMT"
_SIGNED: Final = (
    *("content-encoding", "content-language", "content-length", "content-md5", "content-type"),
    *("date", "if-modified-since", "if-match", "if-none-match", "if-unmodified-since", "range"),
)


@dataclass(slots=True)
class AzureServer:
    port: int
    account: str = "team"
    key: str = base64.b64encode(b"a key for tests").decode()
    containers: dict[str, dict[str, bytes]] = field(default_factory=dict)
    blocks: dict[tuple[str, str], dict[str, bytes]] = field(default_factory=dict)
    """Of blobs that are not committed yet, by container and name."""
    refuses_deletes: bool = False
    lock: threading.Lock = field(default_factory=threading.Lock)
    numbers: Iterator[int] = field(default_factory=itertools.count)

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}/{self.account}"

    def make_container(self) -> str:
        name = f"container-{next(self.numbers)}"
        self.containers[name] = {}
        return name

    def signature(self, method: str, url: str, headers: dict[str, str]) -> str:
        """Of the "shared key" kind."""
        parts = urlsplit(url)
        fields = [headers.get(name, "") for name in _SIGNED]
        if fields[2] == "0":
            fields[2] = ""
        own = [f"{name}:{headers[name]}" for name in sorted(headers) if name.startswith("x-ms-")]
        query = [f"{name}:{value}" for name, value in sorted(parse_qsl(parts.query))]
        resource = [f"/{self.account}{parts.path}", *query]
        text = "\n".join([method, *fields, *own, *resource])
        digest = hmac.new(base64.b64decode(self.key), text.encode(), hashlib.sha256).digest()
        return f"SharedKey {self.account}:{base64.b64encode(digest).decode()}"


@contextmanager
def azure_server() -> Iterator[AzureServer]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True
        wbufsize = -1

        def handle_one(self) -> None:
            said = {name.lower(): value for name, value in self.headers.items()}
            body = self.rfile.read(int(said.get("content-length", 0)))
            parts = urlsplit(self.path)
            query = dict(parse_qsl(parts.query))
            _, _, container, *names = unquote(parts.path).split("/")
            if said.get("authorization") != server.signature(self.command, self.path, said):
                self.refuse(403, "AuthenticationFailed")
            elif container not in server.containers:
                self.refuse(404, "ContainerNotFound")
            elif query.get("comp") == "batch":
                with server.lock:
                    self.delete_all(container, body.decode())
            elif query.get("comp") == "list":
                self.list(container, query)
            else:
                with server.lock:
                    self.answer(container, "/".join(names), query, said, body)

        do_GET = do_HEAD = do_PUT = do_POST = handle_one

        def list(self, container: str, query: dict[str, str]) -> None:
            """Pages of 100; with a delimiter, names that go on behind it become one prefix."""
            prefix, delimiter = query.get("prefix", ""), query.get("delimiter")
            found: list[tuple[str, int | None]] = []
            with server.lock:
                for name, data in sorted(server.containers[container].items()):
                    if not name.startswith(prefix):
                        continue
                    first, more_follows, _ = name[len(prefix) :].partition(delimiter or "\0")
                    entry = (prefix + first + "/", None) if more_follows else (name, len(data))
                    if entry[0] >= query.get("marker", "") and entry not in found[-1:]:
                        found.append(entry)
            blobs = "".join(
                f"<BlobPrefix><Name>{escape(name)}</Name></BlobPrefix>"
                if size is None
                else f"<Blob><Name>{escape(name)}</Name><Properties><Last-Modified>{_DATE}</Last-Modified>"
                f"<Content-Length>{size}</Content-Length><Content-Type>x</Content-Type><Etag>e</Etag></Properties></Blob>"
                for name, size in found[:100]
            )
            more = escape(found[100][0]) if len(found) > 100 else ""
            text = f"<EnumerationResults><Blobs>{blobs}</Blobs><NextMarker>{more}</NextMarker></EnumerationResults>"
            self.reply(200, text.encode())

        def delete_all(self, container: str, batch: str) -> None:
            """Requests in the parts of a body, and so the answers."""
            answers = []
            for number, name in enumerate(
                re.findall(r"^DELETE /[^/]+/[^/]+/(\S+) HTTP", batch, re.M)
            ):
                said = "202 Accepted"
                if server.refuses_deletes:
                    said = "403 Forbidden\r\nx-ms-error-code: AuthorizationPermissionMismatch"
                elif server.containers[container].pop(unquote(name), None) is None:
                    said = "404 Not Found\r\nx-ms-error-code: BlobNotFound"
                answers.append(
                    f"--of\r\nContent-Type: application/http\r\nContent-ID: {number}\r\n\r\nHTTP/1.1 {said}\r\n\r\n"
                )
            self.reply(202, f"{''.join(answers)}--of--".encode(), "multipart/mixed; boundary=of")

        def answer(
            self,
            container: str,
            name: str,
            query: dict[str, str],
            said: dict[str, str],
            body: bytes,
        ) -> None:
            blobs, blocks = server.containers[container], server.blocks
            match self.command, query.get("comp"):
                case "PUT", "block":
                    blocks.setdefault((container, name), {})[query["blockid"]] = body
                    self.reply(201)
                case "PUT", "blocklist":
                    kept = blocks.pop((container, name))
                    named = re.findall(r"<(?:Uncommitted|Latest)>([^<]+)<", body.decode())
                    blobs[name] = b"".join(kept[block] for block in named)
                    self.reply(201)
                case "PUT", _ if said.get("if-none-match") == "*" and name in blobs:
                    self.refuse(409, "BlobAlreadyExists")
                case "PUT", _:
                    blobs[name] = body
                    self.reply(201)
                case _ if name not in blobs:
                    self.refuse(404, "BlobNotFound")
                case _:
                    self.read(blobs[name], said.get("range") or said.get("x-ms-range"))

        def read(self, data: bytes, wanted: str | None) -> None:
            if wanted is None:
                self.reply(200, data)
                return
            first, last = (int(number) for number in wanted.removeprefix("bytes=").split("-"))
            if first >= len(data):
                self.refuse(416, "InvalidRange")
            else:
                last = min(last, len(data) - 1)
                self.reply(
                    206, data[first : last + 1], content_range=f"bytes {first}-{last}/{len(data)}"
                )

        def refuse(self, status: int, code: str) -> None:
            text = f'<?xml version="1.0"?><Error><Code>{code}</Code><Message>as asked</Message></Error>'
            self.reply(status, text.encode())

        def reply(
            self,
            status: int,
            body: bytes = b"",
            kind: str = "application/xml",
            content_range: str = "",
        ) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.send_header("Content-Type", kind)
            self.send_header("ETag", '"e"')
            self.send_header("Last-Modified", _DATE)
            if content_range:
                self.send_header("Content-Range", content_range)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)
            self.wfile.flush()

        def log_message(self, format: str, *arguments: object) -> None:
            pass

    class Server(ThreadingHTTPServer):
        daemon_threads = True
        request_queue_size = 64

    listening = Server(("127.0.0.1", 0), Handler)
    server = AzureServer(listening.server_address[1])
    thread = threading.Thread(target=listening.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        listening.shutdown()
        listening.server_close()
        thread.join()
