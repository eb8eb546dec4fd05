"""A contender in a process of its own, with variables of its own: told to run, it says how long it took."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, Protocol

_PR_SET_PDEATHSIG = 1


class Contender(Protocol):
    """Made in the new process, by a function that pickles."""

    def run(self, *arguments: Any) -> Any: ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class ContenderProcess:
    pid: int
    _pipe: Connection

    def run(self, *arguments: Any) -> Any:
        """What `run` of the contender returns. `RuntimeError` if it raised."""
        self._pipe.send(arguments)
        return self._answer()

    def _answer(self) -> Any:
        failed, result = self._pipe.recv()
        if failed:
            raise RuntimeError(result)
        return result


@contextmanager
def contender(
    make: Callable[..., Contender], *arguments: Any, environment: Mapping[str, str] = {}
) -> Iterator[ContenderProcess]:
    """Ready when it is entered; closed, or killed, at the end."""
    context = multiprocessing.get_context("spawn")
    mine, its = context.Pipe()
    process = context.Process(target=_serve, args=(its, make, arguments, dict(environment)))
    process.start()
    its.close()
    assert process.pid is not None
    found = ContenderProcess(process.pid, mine)
    try:
        found._answer()
        yield found
        mine.send(None)
        process.join(30)
    finally:
        process.kill()
        process.join()
        mine.close()


def _serve(
    pipe: Connection,
    make: Callable[..., Contender],
    arguments: tuple[Any, ...],
    environment: Mapping[str, str],
) -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    os.environ.update(environment)
    try:
        made = make(*arguments)
        pipe.send((False, None))
        while (wanted := pipe.recv()) is not None:
            pipe.send((False, made.run(*wanted)))
        made.close()
    except Exception as error:
        pipe.send((True, repr(error)))
        raise
