"""Job records and orders for tests, and a registry in memory: the reference of the port."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from dieselfs.cache.jobs.job_record import JobRecord
from dieselfs.cache.jobs.published_order import PublishedOrder
from dieselfs.errors import RegistryUnavailable

ORDER = PublishedOrder.of(["made:a", "made:b"], np.array([7, 1, 1 << 31], np.uint32))
READER = "00112233445566aa"


def made_record(
    reader: str = READER, order: PublishedOrder = ORDER, **changed: object
) -> JobRecord:
    record = JobRecord(
        reader=reader,
        job="resnet",
        host="node1",
        pid=7,
        dataset="made",
        dataset_id="0" * 32,
        order=order.id,
        length=len(order.keys),
    )
    return msgspec.structs.replace(record, **changed)


class MemoryJobs:
    """A registry without leases, which can be away."""

    def __init__(self) -> None:
        self.held: dict[str, JobRecord] = {}
        self.orders: dict[str, PublishedOrder] = {}
        self.is_away = False
        self.asked: list[str] = []
        """The ids of the orders that were asked for."""

    def publish(self, record: JobRecord, order: PublishedOrder) -> None:
        self._check()
        self.held[record.reader], self.orders[order.id] = record, order

    def withdraw(self, reader: str) -> None:
        if not self.is_away:
            self.held.pop(reader, None)

    def records(self) -> Sequence[JobRecord]:
        self._check()
        return list(self.held.values())

    def order(self, id: str) -> PublishedOrder | None:
        self._check()
        self.asked.append(id)
        return self.orders.get(id)

    def close(self) -> None:
        return

    def _check(self) -> None:
        if self.is_away:
            raise RegistryUnavailable("away")
