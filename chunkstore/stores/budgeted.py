"""A wrapper whose reads of chunks are paid for from a byte budget, before they begin.

It is outside of everything that bounds time (`resilient`), so a read that waits for its budget has
started no clock, holds no place and no thread of the store, and is not hedged. Other keys than
those of chunks pass freely: commits, snapshots, leases.

A read takes the bytes that it asks for. Afterwards the budget is corrected by the bytes that came:
those of hedges and repeated requests are charged, also if they come later than the read's answer,
and a failed read is given back what it took, less what came.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from chunkstore.chunk_id import ChunkId
from chunkstore.object_keys import chunk_of_key, dataset_of_chunk
from chunkstore.stores.byte_budget import ByteBudget
from chunkstore.stores.object_store import Buffer, ObjectStore
from chunkstore.stores.read import Read
from chunkstore.stores.read_meter import ReadMeter, metered
from chunkstore.stores.read_wrapper import ReadWrapper

_USUAL_BYTES: Final = 4 << 20
"""The size of a whole chunk whose size is unknown, until it has come."""


class BudgetedStore(ReadWrapper):
    """The `ObjectStore` of readers that keep to a budget. Thread-safe; it has no state of its own.

    It can be pickled if its arguments can.
    """

    def __init__(
        self,
        store: ObjectStore,
        payer: Callable[[], ByteBudget | None],
        size_of: Callable[[ChunkId], int | None],
    ) -> None:
        """`payer` returns the budget that pays for a read of this thread; None: it is free.

        `size_of` gives the known sizes of chunks' objects.
        """
        super().__init__(store)
        self._payer, self._size_of = payer, size_of

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._wrapped, self._payer, self._size_of)

    def _read(self, read: Read) -> Buffer:
        dataset = dataset_of_chunk(read.key)
        budget = None if dataset is None else self._payer()
        if dataset is None or budget is None:
            return read.of(self._wrapped)
        taken = self._size(dataset, read)
        budget.take(taken)
        came, meter = 0, ReadMeter(budget.charge)
        try:
            with metered(meter):
                data = read.of(self._wrapped)
            came = len(data)
            return data
        finally:
            # A store without wrappers counts nothing.
            budget.charge(max(came, meter.end()) - taken)

    def _size(self, dataset: str, read: Read) -> int:
        if read.length is not None:
            return read.length
        chunk = chunk_of_key(dataset, read.key)
        known = None if chunk is None else self._size_of(chunk)
        return _USUAL_BYTES if known is None else known
