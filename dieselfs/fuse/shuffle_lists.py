"""Shuffled orders as text, one path a line, for the control directory.

A list is a pure function of its snapshot and its parameters, so it is built once in a worker thread
however many ask for it at a time, kept while there is room, and built again when it is asked for later.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Final

import trio

from dieselfs.shuffle import ShuffleParameters, shuffle_order
from dieselfs.worker_threads import WorkerThreads
from metadata.snapshot import Snapshot

KEPT_BYTES: Final = 256 << 20
"""Six lists of 1.28 M files: those that are being read at a time must fit, or each read builds."""


@dataclass(frozen=True, slots=True)
class ShuffledOrder:
    """What a list is built from."""

    snapshot: Snapshot
    parameters: ShuffleParameters


class ShuffleLists:
    """Texts of shuffled orders. At most `kept_bytes` are held, or else one text."""

    def __init__(self, threads: WorkerThreads, kept_bytes: int = KEPT_BYTES) -> None:
        self._threads = threads
        self._kept_bytes = kept_bytes
        self._texts: OrderedDict[ShuffledOrder, bytes] = OrderedDict()
        self._held_bytes = 0
        self._building = trio.Lock()  # one at a time: a build takes a core and its own memory

    async def text(self, order: ShuffledOrder) -> bytes:
        text = self._kept(order)
        if text is None:
            async with self._building:
                text = self._kept(order)  # another request may have built it meanwhile
                if text is None:
                    text = await self._threads.run(_build, order)
                    self._keep(order, text)
        return text

    def _kept(self, order: ShuffledOrder) -> bytes | None:
        text = self._texts.get(order)
        if text is not None:
            self._texts.move_to_end(order)
        return text

    def _keep(self, order: ShuffledOrder, text: bytes) -> None:
        self._texts[order] = text
        self._held_bytes += len(text)
        while self._held_bytes > self._kept_bytes and len(self._texts) > 1:
            _, dropped = self._texts.popitem(last=False)
            self._held_bytes -= len(dropped)


def _build(wanted: ShuffledOrder) -> bytes:
    snapshot, parameters = wanted.snapshot, wanted.parameters
    order = shuffle_order(
        snapshot.chunk_first_inode,
        parameters.seed,
        parameters.epoch,
        parameters.group_size,
        parameters.rank,
        parameters.world_size,
    )
    return snapshot.paths_text(order.inodes)
