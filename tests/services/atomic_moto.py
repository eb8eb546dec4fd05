"""moto's S3 server with conditional puts and listings that are atomic, as S3's are: `python -m
tests.services.atomic_moto -H HOST -p PORT`.

moto looks for the object and then stores it, and two threads may both find none. It lists a
dictionary, which another thread may change meanwhile (500).

It spends half of its CPU time on a look through its own folders at each request, so they are listed
once.
"""

import sys
import threading
from collections.abc import Callable, Iterable
from io import BytesIO
from typing import Any

import moto.server
from moto import backends
from moto.moto_server.werkzeug_app import DomainDispatcherApplication

_changing_or_listing = threading.Lock()
_answer: Callable[..., Iterable[bytes]] = DomainDispatcherApplication.__call__


def answer(self: Any, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
    is_listing = "list-type=" in environ.get("QUERY_STRING", "")
    if environ["REQUEST_METHOD"] in ("GET", "HEAD") and not is_listing:
        return _answer(self, environ, start_response)
    if length := int(environ.get("CONTENT_LENGTH") or 0):
        # A body that comes slowly holds nobody else up.
        environ["wsgi.input"] = BytesIO(environ["wsgi.input"].read(length))
    with _changing_or_listing:
        return list(_answer(self, environ, start_response))


if __name__ == "__main__":
    DomainDispatcherApplication.__call__ = answer  # type: ignore[method-assign]
    services = list(backends.list_of_moto_modules())
    backends.list_of_moto_modules = lambda: services
    moto.server.main(sys.argv[1:])
