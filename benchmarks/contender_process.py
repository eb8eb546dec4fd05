"""A contender in a process of its own, with variables of its own: told to run, it says how long it
took."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any, Protocol

_PR_SET_PDEATHSIG = 1


class Contender(Protocol):
    """Made in the new process, by a function that pickles."""

    def run(self, *arguments: Any) -> Any: ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class ContenderProcess:
    process: BaseProcess
    _pipe: Connection

    def run(self, *arguments: Any) -> Any:
        """What `run` of the contender returns. `RuntimeError` if it raised."""
        self.begin(*arguments)
        return self.answer()

    def begin(self, *arguments: Any) -> None:
        self._pipe.send(arguments)

    def answer(self) -> Any:
        failed, result = self._pipe.recv()
        if failed:
            raise RuntimeError(result)
        return result

    def end(self) -> None:
        """In order, if it is there."""
        try:
            self._pipe.send(None)
        except OSError:
            return
        self.process.join(30)

    def kill(self) -> None:
        self.process.kill()
        self.process.join()
        self._pipe.close()


def run_together(
    processes: Sequence[ContenderProcess], arguments: Sequence[tuple[Any, ...]]
) -> list[Any]:
    """What each `run` returns, each with its own arguments, side by side."""
    for process, own in zip(processes, arguments, strict=True):
        process.begin(*own)
    return [process.answer() for process in processes]


@dataclass(frozen=True, slots=True)
class ContenderPlan:
    make: Callable[..., Contender]
    arguments: tuple[Any, ...]
    environment: Mapping[str, str] = field(default_factory=dict)


@contextmanager
def contenders(plans: Sequence[ContenderPlan]) -> Iterator[list[ContenderProcess]]:
    """Made side by side, and ready when this is entered; closed, or killed, at the end."""
    context = multiprocessing.get_context("spawn")
    found: list[ContenderProcess] = []
    try:
        for plan in plans:
            mine, its = context.Pipe()
            arguments = its, plan.make, plan.arguments, dict(plan.environment)
            process = context.Process(target=_serve, args=arguments)
            process.start()
            its.close()
            found.append(ContenderProcess(process, mine))
        for each in found:
            each.answer()
        yield found
        for each in found:
            each.end()
    finally:
        for each in found:
            each.kill()


@contextmanager
def contender(
    make: Callable[..., Contender], *arguments: Any, environment: Mapping[str, str] = {}
) -> Iterator[ContenderProcess]:
    with contenders([ContenderPlan(make, arguments, environment)]) as [found]:
        yield found


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
