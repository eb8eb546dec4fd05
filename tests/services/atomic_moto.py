"""moto's S3 server with conditional puts that are atomic, as S3's are: `python -m
tests.services.atomic_moto -H HOST -p PORT`.

moto looks for the object and then stores it, and two threads may both find none.
"""

import sys
import threading
from collections.abc import Callable, Iterable
from typing import Any

import moto.server
from moto.moto_server.werkzeug_app import DomainDispatcherApplication

_putting = threading.Lock()
_answer: Callable[..., Iterable[bytes]] = DomainDispatcherApplication.__call__


def answer(self: Any, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
    if environ["REQUEST_METHOD"] != "PUT" or "HTTP_IF_NONE_MATCH" not in environ:
        return _answer(self, environ, start_response)
    with _putting:
        return list(_answer(self, environ, start_response))


if __name__ == "__main__":
    DomainDispatcherApplication.__call__ = answer  # type: ignore[method-assign]
    moto.server.main(sys.argv[1:])
