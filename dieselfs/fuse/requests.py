"""The boundary that every request of the kernel passes: it is counted, and no failure gets past it.

pyfuse3 turns `FUSEError` into a reply; any other exception ends the whole mount. So what is expected
becomes its errno, and what is not becomes EIO with a traceback in the log.
"""

from __future__ import annotations

import errno
import logging
from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

import pyfuse3

from dieselfs.fuse.errnos import errno_of

log = logging.getLogger(__name__)

_Parameters = ParamSpec("_Parameters")
_Reply = TypeVar("_Reply")


class _Counting(Protocol):
    request_counts: dict[str, int]


_Self = TypeVar("_Self", bound=_Counting)


def request(
    handler: Callable[Concatenate[_Self, _Parameters], Coroutine[Any, Any, _Reply]],
) -> Callable[Concatenate[_Self, _Parameters], Coroutine[Any, Any, _Reply]]:
    """Make a request handler of a method: see above."""
    kind = handler.__name__

    @wraps(handler)
    async def answer(
        self: _Self, /, *arguments: _Parameters.args, **keywords: _Parameters.kwargs
    ) -> _Reply:
        counts = self.request_counts
        counts[kind] = counts.get(kind, 0) + 1
        try:
            return await handler(self, *arguments, **keywords)
        except pyfuse3.FUSEError:
            raise
        except Exception as error:
            raise pyfuse3.FUSEError(_logged_errno(kind, arguments, error)) from None

    return answer


def _logged_errno(kind: str, arguments: tuple[object, ...], error: Exception) -> int:
    number = errno_of(error)
    subject = arguments[0] if arguments else "-"  # an inode, in nearly every request
    if number is None:
        log.error("%s of %s failed unexpectedly: EIO", kind, subject, exc_info=error)
        return errno.EIO
    log.error(
        "%s of %s: %s: %s: %s",
        kind,
        subject,
        errno.errorcode[number],
        type(error).__name__,
        error,
    )
    return number
