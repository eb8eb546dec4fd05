"""The boundary that every request through pyfuse3 passes: it is counted, and no failure gets past it.

pyfuse3 turns `FUSEError` into a reply; any other exception ends the whole mount. So an expected error
becomes its errno, and an unexpected one becomes EIO with a traceback in the log.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

import pyfuse3

from dieselfs.fuse.errnos import logged_errno

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
            subject = arguments[0] if arguments else "-"  # an inode, in nearly every request
            raise pyfuse3.FUSEError(logged_errno(kind, subject, error)) from None

    return answer
