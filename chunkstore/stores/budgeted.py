"""A wrapper whose reads of chunks are paid for from a byte budget, before they begin.

It is outside of everything that bounds time (`resilient`), so a read that waits for its budget has
started no clock, holds no place and no thread of the store, and is not hedged. Other keys than
those of chunks pass freely: commits, snapshots, leases.

A read takes the bytes that it asks for, and a read of a whole object takes the size of the last
one: chunks of a dataset are about equal, and to look a size up would cost more than all the rest.
Afterwards the budget is corrected by the bytes that came. Those of hedges and repeated requests are
charged, also if they come later than the read's answer. A failed read gets back what it took if
nothing came.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from chunkstore.chunk_id import ChunkId
from chunkstore.object_keys import chunk_of_key, dataset_of_chunk
from chunkstore.stores.object_store import Buffer, ObjectStore
from chunkstore.stores.read import Read
from chunkstore.stores.read_meter import ReadMeter, of_thread
from chunkstore.stores.read_turn import Payer, current_turn
from chunkstore.stores.read_wrapper import ReadWrapper

_USUAL_BYTES: Final = 4 << 20
"""The size that is taken for the first whole chunk if it is unknown."""


class BudgetedStore(ReadWrapper):
    """The `ObjectStore` of readers that keep to a budget. Thread-safe.

    It can be pickled if its arguments can. A read without a payer costs 0.7 µs more than it does
    without this wrapper; one with a payer that does not wait, 2 µs.
    """

    def __init__(
        self,
        store: ObjectStore,
        payer: Payer,
        size_of: Callable[[ChunkId], int | None],
    ) -> None:
        """`payer` returns the budget that pays if the thread's turn names no other payer.

        `size_of` gives the known sizes of chunks' objects; the first whole one takes its size.
        """
        super().__init__(store)
        self._payer, self._size_of = payer, size_of
        self._last_whole_bytes: int | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._wrapped, self._payer, self._size_of)

    def _read(self, read: Read) -> Buffer:
        dataset = dataset_of_chunk(read.key)
        budget = None if dataset is None else (current_turn().payer or self._payer)()
        if dataset is None or budget is None:
            return read.of(self._wrapped)
        taken = self._size(dataset, read)
        budget = budget.take(taken)
        if budget is None:
            return read.of(self._wrapped)
        of_thread.meter = meter = ReadMeter(budget.charge)
        try:
            data = read.of(self._wrapped)
        except BaseException:
            if meter.nothing_came():
                budget.charge(-taken)
            raise
        finally:
            of_thread.meter = None
        came = len(data)
        if read.length is None:
            self._last_whole_bytes = came
        if came != taken:
            budget.charge(came - taken)
        return data

    def _size(self, dataset: str, read: Read) -> int:
        if read.length is not None:
            return read.length
        if self._last_whole_bytes is not None:
            return self._last_whole_bytes
        chunk = chunk_of_key(dataset, read.key)
        known = None if chunk is None else self._size_of(chunk)
        return _USUAL_BYTES if known is None else known
