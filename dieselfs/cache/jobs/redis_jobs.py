"""The job registry in the Redis of the index, a server or a cluster.

The key `dieselfs:{jobs}:records` is a set of leases, whose entries are records as JSON. The keys
`dieselfs:{jobs}:records:<id>` are orders, which expire when nobody renews them. Leases end by the
server's clock, so the clocks of nodes do not matter.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from typing import Final

from dieselfs.cache.jobs.job_record import LEASE_S, JobRecord, encoded
from dieselfs.cache.jobs.job_registry import JobRecordReader
from dieselfs.cache.jobs.published_order import PublishedOrder, decoded_order
from dieselfs.errors import RegistryUnavailable
from metadata.errors import IndexUnavailable
from metadata.kv.redis_leases import RedisLeaseSet

log = logging.getLogger(__name__)

NAME: Final = "dieselfs:{jobs}:records"
ORDER_LEASE_S: Final = 120.0
_ORDER_RENEWED_S: Final = 20.0


class RedisJobs:
    """The `JobRegistry` in a Redis."""

    def __init__(
        self,
        url: str,
        *,
        lease_s: float = LEASE_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Raise `IndexUnavailable` if the URL is no address of a Redis. No call is made."""
        self._leases, self._lease_s, self._clock = RedisLeaseSet(url, NAME), lease_s, clock
        self._entries: dict[str, bytes] = {}
        """The entry of each reader that this process publishes."""
        self._renewed: dict[str, float] = {}
        """When the order of a reader was renewed, by its id."""
        self._reader = JobRecordReader(str(self))

    def __str__(self) -> str:
        return f"the job registry in {self._leases}"

    def publish(self, record: JobRecord, order: PublishedOrder) -> None:
        """See `JobRegistry`."""
        entry, former = encoded(record), self._entries.get(record.reader, b"")
        try:
            self._keep(order)
            put = self._leases.put(entry, former, self._lease_s)
            if put == "restored":  # the server may have lost orders too
                self._renewed.clear()
                self._keep(order)
        except IndexUnavailable as error:
            raise RegistryUnavailable(str(error)) from error
        if put == "full":
            raise RegistryUnavailable(f"{self} is full")
        self._entries[record.reader] = entry

    def withdraw(self, reader: str) -> None:
        """See `JobRegistry`."""
        entry = self._entries.pop(reader, None)
        try:
            if entry is not None:
                self._leases.remove(entry)
        except IndexUnavailable as error:
            log.info("cannot give back the lease of a job record, so it expires: %s", error)

    def records(self) -> Sequence[JobRecord]:
        """See `JobRegistry`."""
        try:
            entries = self._leases.entries()
        except IndexUnavailable as error:
            raise RegistryUnavailable(str(error)) from error
        return self._reader.decoded(entries)

    def order(self, id: str) -> PublishedOrder | None:
        """See `JobRegistry`."""
        try:
            content = self._leases.value(id)
        except IndexUnavailable as error:
            raise RegistryUnavailable(str(error)) from error
        try:
            return None if content is None else decoded_order(content, id)
        except ValueError as error:
            log.debug("order %s in %s is skipped: %s", id, self, error)
            return None

    def close(self) -> None:
        """See `JobRegistry`."""
        self._leases.close()

    def _keep(self, order: PublishedOrder) -> None:
        """Put the order unless it is there; look now and then, since its lease ends."""
        now = self._clock()
        if now - self._renewed.get(order.id, -_ORDER_RENEWED_S) < _ORDER_RENEWED_S:
            return
        if not self._leases.renew_value(order.id, ORDER_LEASE_S):
            self._leases.put_value(order.id, order.content, ORDER_LEASE_S)
        self._renewed = {
            id: at for id, at in self._renewed.items() if now - at < _ORDER_RENEWED_S
        } | {order.id: now}
