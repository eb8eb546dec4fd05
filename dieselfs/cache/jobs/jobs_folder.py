"""The job registry in a folder of the node's shared memory, for an index that is no Redis.

The folder is `<tmpfs>/dieselfs-jobs-<uid>/`, which only its user can access. A record is a file
that lives as long as its publisher (`HeldFiles`). Orders are files named by their ids; those that
no record names are deleted.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from dieselfs.cache.jobs.job_record import MAX_RECORD_BYTES, JobRecord, encoded
from dieselfs.cache.jobs.job_registry import JobRecordReader
from dieselfs.cache.jobs.published_order import MAX_ORDER_BYTES, PublishedOrder, decoded_order
from dieselfs.cache.node.held_files import HeldFiles, names_in, private_folder
from dieselfs.cache.node.task_folder import make_private
from dieselfs.errors import LocalFileError, RegistryUnavailable

log = logging.getLogger(__name__)

MAX_RECORDS: Final = 1024
MAX_ORDERS_BYTES: Final = 256 << 20
_RECORD, _ORDER = ".job", ".order"
_UNNAMED_S: Final = 60.0
"""The age from which an order that no record names is deleted."""


def jobs_folder() -> Path:
    """Return the path of this user's registry."""
    return private_folder("jobs")


class JobsFolder:
    """The `JobRegistry` in a folder."""

    def __init__(self, folder: Path | None = None) -> None:
        """Create it; the folder is made by the first record."""
        self.folder = folder or jobs_folder()
        self._files = HeldFiles(
            self.folder, _RECORD, max_files=MAX_RECORDS, max_bytes=MAX_RECORD_BYTES
        )
        self._reader = JobRecordReader(str(self))

    def __str__(self) -> str:
        return f"the job registry in {self.folder}"

    def publish(self, record: JobRecord, order: PublishedOrder) -> None:
        """See `JobRegistry`."""
        content = encoded(record)
        try:
            self._keep(order)
            self._files.put(record.reader, content)
        except OSError as error:
            raise RegistryUnavailable(f"{self}: {error.strerror or error}") from error
        except LocalFileError as error:
            raise RegistryUnavailable(str(error)) from error

    def withdraw(self, reader: str) -> None:
        """See `JobRegistry`."""
        if self._files.remove(reader):
            with suppress(OSError):
                self._delete_orders({record.order for record in self._records()}, 0.0)

    def records(self) -> Sequence[JobRecord]:
        """See `JobRegistry`."""
        try:
            return self._records()
        except FileNotFoundError:
            return []
        except OSError as error:
            raise RegistryUnavailable(f"{self}: {error.strerror or error}") from error

    def order(self, id: str) -> PublishedOrder | None:
        """See `JobRegistry`."""
        try:
            with open(self.folder / f"{id}{_ORDER}", "rb") as file:
                return decoded_order(file.read(MAX_ORDER_BYTES + 1), id)
        except (OSError, ValueError) as error:
            log.debug("order %s in %s is skipped: %s", id, self, error)
            return None

    def close(self) -> None:
        """See `JobRegistry`."""
        self._files.close()

    def _records(self) -> list[JobRecord]:
        contents, has_dead = self._files.contents()
        found = self._reader.decoded(contents)
        if has_dead:
            self._delete_orders({record.order for record in found}, _UNNAMED_S)
        return found

    def _keep(self, order: PublishedOrder) -> None:
        """Write the order unless it is there."""
        path = self.folder / f"{order.id}{_ORDER}"
        if path.exists():
            return
        make_private(self.folder)
        self._delete_orders({record.order for record in self._records()}, _UNNAMED_S)
        others = sum(os.stat(self.folder / name).st_size for name in names_in(self.folder, _ORDER))
        if others + len(order.content) > MAX_ORDERS_BYTES:
            raise RegistryUnavailable(f"{self} has no room for another order")
        temporary = self.folder / f".{order.id}.{os.getpid()}"
        with open(temporary, "wb") as file:
            file.write(order.content)
        os.rename(temporary, path)

    def _delete_orders(self, named: set[str], least_age_s: float) -> None:
        """Delete the orders that no record names; new ones may be named in a moment."""
        for name in names_in(self.folder, _ORDER):
            path = self.folder / name
            with suppress(OSError):  # it is gone, or not one of ours
                age_s = time.time() - path.stat().st_mtime
                if name.removesuffix(_ORDER) not in named and abs(age_s) >= least_age_s:
                    path.unlink()
