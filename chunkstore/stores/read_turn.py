"""The turn of a thread's reads: whether a reader waits for them, and who pays.

A read ahead becomes an urgent one when a reader comes to wait for it, and readers of several jobs
may wait for one read. So a turn may change while its read waits for a byte budget.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias, TypeVar

if TYPE_CHECKING:
    from chunkstore.stores.byte_budget import ByteBudget

Payer: TypeAlias = "Callable[[], ByteBudget | None]"
"""A function that returns the budget that pays for a read; None: the read is free."""
T = TypeVar("T")


class Waiting(Protocol):
    """A read that waits for its budget."""

    budget: ByteBudget
    wake: threading.Event
    """Set when it must look again."""


class ReadTurn:
    """The turn of a thread's reads: ahead, or waited for by a reader; and who pays. Thread-safe."""

    __slots__ = ("_takes", "ahead", "is_free", "others", "payer")

    def __init__(self, ahead: bool = False, payer: Payer | None = None) -> None:
        """`payer` pays for the reads; None: that of the store (`BudgetedStore`)."""
        self.ahead = ahead
        """True while no reader waits for what is read."""
        self.payer = payer
        self.is_free = False
        """True if a reader waits for it who pays for nothing."""
        self.others: dict[ByteBudget, ReadTurn] = {}
        """The budgets of others who wait for what is read, and their turns there."""
        self._takes: list[Waiting] = []

    def hurry(self) -> None:
        """Note that a reader waits for it from now on. A read that waits changes its line."""
        if self.ahead:
            self.ahead = False
            for take in tuple(self._takes):
                take.budget.reorder()

    def join(self, budget: ByteBudget | None, *, ahead: bool) -> None:
        """Note that another job waits for it from now on, whose budget may pay too; None: free."""
        if budget is None:
            self.is_free = True
        else:  # of threads that join at the same moment, one makes the turn
            known = self.others.get(budget) or self.others.setdefault(budget, ReadTurn(ahead))
            if not ahead and known.ahead:
                known.ahead = False
                budget.reorder()
        for take in tuple(self._takes):
            take.wake.set()

    @contextmanager
    def waiting(self, take: Waiting) -> Iterator[None]:
        """Have `hurry` and `join` wake a read that waits, within the `with` block."""
        self._takes.append(take)
        try:
            yield
        finally:
            self._takes.remove(take)


_of_thread = threading.local()
_ORDINARY: Final = ReadTurn()


def current_turn() -> ReadTurn:
    """Return the turn of this thread's reads; by default a reader waits for them."""
    turn: ReadTurn = getattr(_of_thread, "turn", _ORDINARY)
    return turn


@contextmanager
def reading(turn: ReadTurn) -> Iterator[None]:
    """Have this thread read with another turn, within the `with` block."""
    outer = current_turn()
    _of_thread.turn = turn
    try:
        yield
    finally:
        _of_thread.turn = outer


def in_this_turn(function: Callable[[], T]) -> Callable[[], T]:
    """Return the function for another thread, which reads with the turn of this one."""
    turn = current_turn()
    if turn is _ORDINARY:
        return function

    def called() -> T:
        with reading(turn):
            return function()

    return called
