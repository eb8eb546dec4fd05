"""A folder that is filled from a dataset: what `Client.download` does."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from chunkstore.progress import Progress
from dieselfs.client.extraction.copies import CopyPlan
from dieselfs.client.extraction.extraction import Extraction, extract
from dieselfs.dataset.file_stat import FileStat
from dieselfs.dataset.path_filter import PathFilter
from dieselfs.errors import PartialFailure

if TYPE_CHECKING:
    from dieselfs.client.client import Client


def download(
    client: Client,
    path: str,
    local: Path,
    *,
    filters: PathFilter | None,
    jobs: int | None,
    ignore_times: bool,
    on_failure: Callable[[FileStat, Exception], None] | None,
    progress: Progress,
) -> Extraction:
    """Copy a file or a directory's contents; see `Client.download`."""
    failures: list[tuple[FileStat, Exception]] = []
    entry = client.stat(path)
    is_folder = entry.kind == "directory"
    done = extract(
        client,
        CopyPlan(
            entry,
            local if is_folder else local.parent,
            "" if is_folder else local.name,
            filters or PathFilter(),
        ),
        on_failure=on_failure or (lambda entry, error: failures.append((entry, error))),
        jobs=jobs,
        ignore_times=ignore_times,
        progress=progress,
    )
    if failures:
        file, error = failures[0]
        raise PartialFailure(
            f"{len(failures)} of {len(failures) + done.files + done.skipped} files were not "
            f"copied to {local}; the first is {file.path}: {error}"
        ) from error
    return done
