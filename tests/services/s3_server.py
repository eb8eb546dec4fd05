"""An S3 server on loopback for tests: moto, in a process of its own, with its objects in memory."""

from __future__ import annotations

import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import parse_qsl, urlsplit

from tests.eventually import eventually
from tests.services.redis_processes import free_port

ACCESS_KEY, SECRET_KEY = "AK", "SK-for-tests"
ENVIRONMENT = {"AWS_ACCESS_KEY_ID": ACCESS_KEY, "AWS_SECRET_ACCESS_KEY": SECRET_KEY}
_CHECKOUT = Path(__file__).parents[2]


@dataclass(frozen=True, slots=True)
class S3Server:
    endpoint: str
    process: subprocess.Popen[bytes]

    def answers(self) -> bool:
        """Whether it does, if only with an error of HTTP."""
        assert self.process.poll() is None, "moto has ended"
        try:
            urllib.request.urlopen(self.endpoint, timeout=5).close()
        except urllib.error.HTTPError:
            pass
        return True

    def make_bucket(self, name: str) -> str:
        """Its address."""
        request = urllib.request.Request(f"{self.endpoint}/{name}", method="PUT")
        urllib.request.urlopen(request, timeout=30).close()
        return f"s3://{name}/some/prefix?endpoint={self.endpoint}&region=us-east-1"


def endpoint_of(url: str) -> str:
    """That an address of `make_bucket` names."""
    return dict(parse_qsl(urlsplit(url).query))["endpoint"]


def request_raw(url: str, path: str, method: str = "GET") -> bytes:
    """The answer to a request below the bucket of this address, of a kind that no store of ours
    makes."""
    bucket = urlsplit(url).netloc
    request = urllib.request.Request(
        f"{endpoint_of(url)}/{bucket}{path}", data=b"" if method == "PUT" else None, method=method
    )
    with urllib.request.urlopen(request, timeout=30) as answer:
        body: bytes = answer.read()
    return body


@contextmanager
def s3_server() -> Iterator[S3Server]:
    """Listening on a port of its own. Killed at the end."""
    server = _started()
    try:
        yield server
    finally:
        server.process.kill()
        server.process.wait()


def _started(ports: int = 5) -> S3Server:
    port = str(free_port())
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.services.atomic_moto", "-H", "127.0.0.1", "-p", port],
        cwd=_CHECKOUT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    server = S3Server(f"http://127.0.0.1:{port}", process)
    try:
        eventually(server.answers, "an answer of moto", ignored=OSError)
    except BaseException as error:
        has_ended = process.poll() is not None
        process.kill()
        process.wait()
        if isinstance(error, AssertionError) and has_ended and ports > 1:
            return _started(ports - 1)  # somebody was faster with the port
        raise
    return server
