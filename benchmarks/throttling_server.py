"""An S3 server on loopback that throttles on purpose, for uploads; a process of its own.

An upload waits until the server has the rate for it, and `latency_s`. From `begins_s` after the
first upload on, for `lasts_s`, the server has a tenth of the rate and ten times the latency, and
answers 503 SlowDown to what comes above the rate. It keeps objects in memory; of chunks above 64
KiB it keeps the size alone unless told otherwise.
"""

from __future__ import annotations

import multiprocessing
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from multiprocessing.connection import Connection
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

CREDENTIALS = {"AWS_ACCESS_KEY_ID": "AK", "AWS_SECRET_ACCESS_KEY": "SK"}
_SLOW_DOWN = (
    b"<Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>"
)
_COMPARED_BYTES = 64 << 10
"""What is not larger is read back by the one that stores it."""
_DATE = "Thu, 01 Jan 2026 00:00:00 GMT"


@dataclass(frozen=True, slots=True)
class Throttling:
    """How a server answers uploads."""

    uploads_per_s: float
    latency_s: float = 0.02
    begins_s: float = 0.0
    lasts_s: float = 0.0
    factor: float = 10.0
    keeps_chunks: bool = False
    get_latency_s: float = 0.0
    swaps_one_in: int = 0
    """While it swaps, one chunk in so many is answered with the bytes of another one."""


@dataclass(slots=True)
class _Uploads:
    """The rate of a server, in virtual time: an upload is served after the one before it."""

    rules: Throttling
    lock: threading.Lock = field(default_factory=threading.Lock)
    first: float | None = None
    free_at: float = 0.0

    def admit(self) -> float | None:
        """The time at which an upload that comes now is answered; None: 503."""
        rules, now = self.rules, time.monotonic()
        with self.lock:
            self.first = now if self.first is None else self.first
            since = now - self.first
            throttles = rules.begins_s <= since < rules.begins_s + rules.lasts_s
            if throttles and self.free_at > now:
                return None
            factor = rules.factor if throttles else 1.0
            self.free_at = max(now, self.free_at) + factor / rules.uploads_per_s
            return self.free_at + factor * rules.latency_s


def _serve(rules: Throttling, pipe: Connection) -> None:
    objects: dict[str, bytes | int] = {}
    uploads = _Uploads(rules)
    lock = threading.Lock()
    others: dict[str, str] = {}
    """While the server swaps: the keys of wrong chunks, and of those that come instead."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True
        wbufsize = -1

        def do_PUT(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length", 0)))
            is_chunk = "/chunks/" in self.path
            if is_chunk:
                until = uploads.admit()
                if until is None:
                    self.reply(503, _SLOW_DOWN)
                    return
                time.sleep(max(0.0, until - time.monotonic()))
            is_small = len(body) <= _COMPARED_BYTES
            kept = body if rules.keeps_chunks or not is_chunk or is_small else len(body)
            with lock:
                created = objects.setdefault(self.key, kept) is kept
            self.reply(200 if created else 412)

        def do_GET(self) -> None:
            query = parse_qs(urlsplit(self.path).query)
            if "list-type" in query:
                prefix, after = (query.get(name, [""])[0] for name in ("prefix", "start-after"))
                self.reply(200, self.listing(prefix, after))
                return
            time.sleep(rules.get_latency_s)
            body = objects.get(others.get(self.key, self.key))
            if not isinstance(body, bytes):
                self.reply(404, b"<Error><Code>NoSuchKey</Code></Error>")
                return
            wanted = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("range", ""))
            if wanted is None:
                self.reply(200, body)
                return
            start, end = int(wanted[1]), min(int(wanted[2]) + 1, len(body))
            self.reply(206, body[start:end], f"bytes {start}-{end - 1}/{len(body)}")

        def do_HEAD(self) -> None:
            body = objects.get(self.key)
            if body is None:
                self.reply(404)
            else:
                self.reply(200, length=len(body) if isinstance(body, bytes) else body)

        def do_DELETE(self) -> None:
            objects.pop(self.key, None)
            self.reply(204)

        @property
        def key(self) -> str:
            return unquote(urlsplit(self.path).path).partition("/")[2].partition("/")[2]

        def listing(self, prefix: str, after: str) -> bytes:
            with lock:
                found = sorted(key for key in objects if key.startswith(prefix) and key > after)
            entries = "".join(
                f"<Contents><Key>{escape(key)}</Key><Size>{_size(objects[key])}</Size>"
                "<LastModified>2026-01-01T00:00:00.000Z</LastModified><ETag>x</ETag></Contents>"
                for key in found
            )
            return (
                f"<ListBucketResult><IsTruncated>false</IsTruncated>{entries}</ListBucketResult>"
            ).encode()

        def reply(
            self, status: int, body: bytes = b"", span: str = "", length: int | None = None
        ) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(body) if length is None else length))
            self.send_header("Last-Modified", _DATE)
            self.send_header("ETag", '"x"')
            if span:
                self.send_header("Content-Range", span)
            self.end_headers()
            self.wfile.write(body)
            self.wfile.flush()

        def log_message(self, format: str, *arguments: object) -> None:
            pass

    class Server(ThreadingHTTPServer):
        daemon_threads = True
        request_queue_size = 256

    server = Server(("127.0.0.1", 0), Handler)
    pipe.send(server.server_address[1])
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    with suppress(EOFError):  # the process that started this one has ended, in whatever way
        while True:
            swaps = pipe.recv()
            others.clear()
            if swaps:
                keys = sorted(key for key in objects if "/chunks/" in key)
                wrong = keys[1 :: rules.swaps_one_in]
                others.update(zip(wrong, keys[: len(wrong)], strict=True))
            pipe.send(sorted(others))


def _size(kept: bytes | int) -> int:
    return kept if isinstance(kept, int) else len(kept)


@contextmanager
def throttling_server(rules: Throttling) -> Iterator[str]:
    """Start a server; the URL of an empty store in it, for which `CREDENTIALS` will do."""
    with swapping_server(rules) as (url, _):
        yield url


@contextmanager
def swapping_server(rules: Throttling) -> Iterator[tuple[str, Callable[[bool], list[str]]]]:
    """Start a server as `throttling_server` does; its URL, and what has it swap chunks from then
    on, or stop that, and returns the keys of the wrong ones."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(rules, theirs), daemon=True)
    process.start()
    theirs.close()
    try:
        port = ours.recv()

        def swap(swaps: bool) -> list[str]:
            ours.send(swaps)
            return list(ours.recv())

        yield f"s3://bucket/store?endpoint=http://127.0.0.1:{port}&region=us-east-1", swap
    finally:
        process.kill()
        process.join()
        ours.close()
