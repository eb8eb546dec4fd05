"""The lines and records of commands about uploads that the store throttled."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dieselfs.cli.rendering.output import counted

if TYPE_CHECKING:
    from chunkstore.stores.adaptive_limit import LimitStatistics
    from chunkstore.stores.object_store import ObjectStore


def uploads_of(store: ObjectStore) -> LimitStatistics:
    """Return the statistics of the uploads through an open store."""
    from chunkstore.stores.adaptive_limit import LimitStatistics
    from chunkstore.stores.resilient import ResilientStore

    return store.statistics().uploads if isinstance(store, ResilientStore) else LimitStatistics()


def throttled(uploads: LimitStatistics) -> str:
    """Return a line on repeated uploads and the lowest limit; empty if none was repeated."""
    if not uploads.failures:
        return ""
    repeated = counted(uploads.failures, "upload", "were")
    return f"throttled: {repeated} repeated, concurrency fell to {uploads.least}"


def upload_record(uploads: LimitStatistics) -> dict[str, int]:
    """Return the same for JSON output."""
    return {"uploads_repeated": uploads.failures, "least_uploads_at_once": uploads.least}
