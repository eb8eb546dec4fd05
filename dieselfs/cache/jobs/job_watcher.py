"""The watcher: it tells a cache policy what all readers have published."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from chunkstore.ssd.policies.job_specifications import JobSpecification
from dieselfs.cache.jobs.job_record import JobRecord
from dieselfs.cache.jobs.job_registry import JobRegistry
from dieselfs.cache.jobs.published_order import PublishedOrder

log = logging.getLogger(__name__)

MAX_ORDERS_BYTES: Final = 256 << 20
"""The most memory for orders; a reader whose order has no room counts as one without an order."""


class JobWatcher:
    """Hands the specification of each reader to `publish`. One thread uses it."""

    def __init__(
        self,
        publish: Callable[[JobSpecification], object],
        is_wanted: Callable[[], bool] = lambda: True,
    ) -> None:
        """`publish` gets the specifications of all readers at each beat, which renews their leases.

        Of a reader that is gone it gets one without buckets. Nothing is asked unless
        `is_wanted`.
        """
        self._publish, self._is_wanted = publish, is_wanted
        self._known: dict[str, JobRecord] = {}
        self._orders: dict[str, PublishedOrder] = {}

    def beat(self, registry: JobRegistry) -> None:
        """Poll the registry. Raises `RegistryUnavailable`; then leases of the policy run out."""
        if not self._is_wanted():
            self._known, self._orders = {}, {}
            return
        records = {record.reader: record for record in registry.records()}
        named = {record.order for record in records.values()}
        self._orders = {id: order for id, order in self._orders.items() if id in named}
        for reader in self._known.keys() - records.keys():
            self._publish(self._known[reader].ended())
        self._known = records
        for record in records.values():
            order = self._orders.get(record.order) or self._fetched(record.order, registry)
            if order is not None:
                self._publish(record.specification(order))

    def end(self, registry: JobRegistry) -> None:
        """Do nothing: the policy ends with its tier."""

    def _fetched(self, id: str, registry: JobRegistry) -> PublishedOrder | None:
        """Return an order that is new here; None if it is not there yet."""
        order = registry.order(id)
        if order is None:
            return None
        if sum(each.size_bytes for each in self._orders.values()) > MAX_ORDERS_BYTES:
            order = PublishedOrder(order.buckets, order.keys[:0])
        self._orders[id] = order
        return order
