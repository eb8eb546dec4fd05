"""JOBS.csv: jobs as a table with one line each, and everything that can be wrong with it.

The columns are `job,dataset,dataset_bytes,speed_bytes_per_s,gpus,passes,submitted_s,regular`, in
any order. `repeats_items` and `order` may be added. Units of sizes and rates are binary.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final, get_args

from dieselfs.allocation.jobs import Job, ReadingOrder
from dieselfs.cache.ssd.byte_sizes import parse_rate, parse_size
from dieselfs.errors import LocalFileError, UsageError

COLUMNS: Final = (
    *("job", "dataset", "dataset_bytes", "speed_bytes_per_s"),
    *("gpus", "passes", "submitted_s", "regular"),
)
OPTIONAL: Final = ("repeats_items", "order")
_MOST_ERRORS: Final = 10
_IN_BITS: Final = re.compile(r"[Bb]its?\b|[Bb]ps\b|[KMGTP]i?b\b")
"""912Mbit/s, 1.6Gbps, 912Mb/s; but 114mb/s is taken as bytes."""
_TRUTHS: Final = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}


def read_job_table(path: Path) -> list[Job]:
    """Return the jobs of a table, in its order.

    Raises `LocalFileError` if the file cannot be read, and `UsageError` that names each bad line.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise LocalFileError(f"{path}: {error.strerror}", "name a table of jobs") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} is not text: {error.reason}", "name a table of jobs") from error
    return parse_job_table(text, str(path))


def parse_job_table(text: str, name: str = "the table") -> list[Job]:
    """Return the jobs of a table's text; `name` says in errors where it is from."""
    jobs: list[Job] = []
    errors: list[str] = []
    first: dict[str, tuple[int, Job]] = {}
    by_dataset: dict[str, tuple[int, Job]] = {}
    for number, row in _rows(text, name):
        try:
            job = _job(row)
            _check_with_others(job, first, by_dataset)
        except UsageError as error:
            errors.append(f"{name}, line {number}: {error}")
            continue
        first[job.name] = by_dataset[job.dataset] = number, job
        jobs.append(job)
    if errors:
        more = len(errors) - _MOST_ERRORS
        shown = errors[:_MOST_ERRORS] + ([f"and {more} more lines"] if more > 0 else [])
        raise UsageError("\n".join(shown), "correct the table; nothing is allocated")
    if not jobs:
        raise UsageError(f"{name} has no jobs", "add a line for each job")
    return jobs


def _rows(text: str, name: str) -> Iterator[tuple[int, Mapping[str | None, object]]]:
    """Yield each line that is not empty, with its number in the file."""
    reader = csv.DictReader(io.StringIO(text, newline=""), skipinitialspace=True, strict=True)
    try:
        columns = [column.strip() for column in reader.fieldnames or ()]
        _check_columns(columns, name)
        reader.fieldnames = columns
        for row in reader:
            yield reader.line_num, row
    except csv.Error as error:
        raise UsageError(
            f"{name}, line {reader.line_num + 1}: {error}",
            "correct the table; nothing is allocated",
        ) from error


def _check_columns(columns: list[str], name: str) -> None:
    hint = f"the first line must be {','.join(COLUMNS)}; nothing is allocated"
    missing = [column for column in COLUMNS if column not in columns]
    if missing:
        raise UsageError(f"{name}, line 1: missing column {', '.join(missing)}", hint)
    unknown = [column for column in columns if column not in COLUMNS + OPTIONAL]
    if unknown:
        raise UsageError(f"{name}, line 1: unknown column {', '.join(unknown) or '(empty)'}", hint)
    if len(set(columns)) < len(columns):
        raise UsageError(f"{name}, line 1: a column is there twice", hint)


def _job(row: Mapping[str | None, object]) -> Job:
    if None in row:
        raise UsageError("more values than columns")
    values = {str(name): str(value or "").strip() for name, value in row.items()}
    for column in COLUMNS:
        if not values[column]:
            raise UsageError(f"{column} is empty")
    gpus = _number("gpus", values["gpus"])
    if gpus != int(gpus):
        raise UsageError(f"gpus of {values['gpus']}: it must be a whole number")
    order = _order(values.get("order") or "random")
    return Job(
        values["job"],
        values["dataset"],
        int(_size("dataset_bytes", values["dataset_bytes"])),
        byte_rate("speed_bytes_per_s", values["speed_bytes_per_s"]),
        int(gpus),
        _number("passes", values["passes"]),
        _number("submitted_s", values["submitted_s"]),
        _truth("regular", values["regular"]),
        _truth("repeats_items", values.get("repeats_items") or "no") or order == "draws",
        order,
    )


def byte_rate(name: str, text: str) -> float:
    """Return the bytes a second of a text; raise `UsageError` for bits, and for other texts."""
    if _IN_BITS.search(text):
        raise UsageError(
            f"{name} of {text}: rates are in bytes a second, not in bits",
            "divide it by 8, and write for instance 114MB/s",
        )
    number = _plain_number(text)
    try:
        return float(parse_rate(text)) if number is None else number
    except (UsageError, OverflowError):
        raise UsageError(
            f"{name} of {text}: it is not a rate", "write for instance 114MB/s"
        ) from None


def _size(name: str, text: str) -> float:
    number = _plain_number(text)
    try:
        size = float(parse_size(text)) if number is None else number
    except (UsageError, OverflowError):
        raise UsageError(f"{name} of {text}: it is not a size such as 1.3TiB") from None
    if not 1 <= size < float("inf"):
        raise UsageError(f"{name} of {text}: it must be more than 0")
    return size


def _plain_number(text: str) -> float | None:
    """Return the number of a text without a unit: 4096, 1.3e12, nan."""
    try:
        return float(text)
    except ValueError:
        return None


def _number(name: str, text: str) -> float:
    number = _plain_number(text)
    if number is None or number != number or abs(number) == float("inf"):
        raise UsageError(f"{name} of {text}: it is not a number")
    return number


def _order(text: str) -> ReadingOrder:
    for order in get_args(ReadingOrder):
        if text.lower() == order:
            found: ReadingOrder = order
            return found
    raise UsageError(f"order of {text}: it must be one of {', '.join(get_args(ReadingOrder))}")


def _truth(name: str, text: str) -> bool:
    if text.lower() not in _TRUTHS:
        raise UsageError(f"{name} of {text}: it must be yes or no")
    return _TRUTHS[text.lower()]


def _check_with_others(
    job: Job, first: Mapping[str, tuple[int, Job]], by_dataset: Mapping[str, tuple[int, Job]]
) -> None:
    if job.name in first:
        raise UsageError(f"job {job.name} is there twice, first in line {first[job.name][0]}")
    line, other = by_dataset.get(job.dataset, (0, job))
    if other.dataset_bytes != job.dataset_bytes:
        raise UsageError(
            f"dataset {job.dataset} has {job.dataset_bytes} bytes here, "
            f"but {other.dataset_bytes} in line {line}"
        )
