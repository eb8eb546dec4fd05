"""The publisher: it keeps the job record of one reader as the reader's present state says."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from dieselfs.cache.jobs.job_record import JobRecord
from dieselfs.cache.jobs.job_registry import JobRegistry
from dieselfs.cache.jobs.reading import Reading


@dataclass(frozen=True, slots=True)
class ReaderIdentity:
    """The reader whose record is published."""

    job: str
    """The job's name; empty if it was given none."""
    id: str = field(default_factory=lambda: os.urandom(8).hex())

    @property
    def name(self) -> str:
        """The name under which its requests and its record count: see `JobRecord.name`."""
        return self.job or self.id


class JobPublisher:
    """Publishes what `look` returns. One thread uses it."""

    def __init__(
        self,
        identity: ReaderIdentity,
        look: Callable[[], Reading | None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`look` returns what is read now, or None, which withdraws the record."""
        self._identity, self._look, self._clock = identity, look, clock
        self._began: float | None = None

    def beat(self, registry: JobRegistry) -> None:
        """Renew the record, or withdraw it. Raises `RegistryUnavailable`."""
        reading = self._look()
        if reading is None:
            if self._began is not None:
                self._began = None
                registry.withdraw(self._identity.id)
            return
        now = self._clock()
        began = self._began = now if self._began is None else self._began
        registry.publish(self._record(reading, now - began), reading.order)

    def end(self, registry: JobRegistry) -> None:
        """Withdraw the record for good."""
        registry.withdraw(self._identity.id)

    def _record(self, reading: Reading, age_s: float) -> JobRecord:
        dataset = reading.snapshot.dataset
        return JobRecord(
            reader=self._identity.id,
            job=self._identity.job,
            host=os.uname().nodename[:255],
            pid=os.getpid(),
            dataset=dataset.name,
            dataset_id=dataset.id.hex(),
            epoch=reading.epoch,
            order=reading.order.id,
            length=len(reading.order.keys),
            position=reading.position,
            keys_per_s=round(reading.keys_per_s, 3),
            finished=reading.finished,
            age_s=round(age_s, 1),
        )
