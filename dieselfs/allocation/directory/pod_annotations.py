"""The annotations of a pod by which cache and remote IO are asked for and given.

A person or a controller writes `job`, `dataset`, `speed` and the like; the allocator answers with
`cache`, `cache-dataset-id` and `remote-io`. All names have a prefix. Values are edited by hand, so
each one is checked for itself: a bad value is named, and counts as missing.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, TypeVar, get_args

from dieselfs.allocation.job_table import byte_rate
from dieselfs.allocation.jobs import (
    MOST_BYTES_PER_S,
    MOST_DATASET_BYTES,
    MOST_PASSES,
    ReadingOrder,
)
from dieselfs.cache.ssd.byte_sizes import parse_size
from dieselfs.errors import UsageError

CACHE: Final = "cache"
CACHE_ID: Final = "cache-dataset-id"
REMOTE_IO: Final = "remote-io"
GIVEN: Final = (CACHE, CACHE_ID, REMOTE_IO)
"""The annotations that the allocator writes."""

_ID: Final = re.compile(r"[0-9a-f]{32}")
_TRUTHS: Final = {"true": True, "yes": True, "false": False, "no": False}
Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class Asked:
    """The request of a pod: what its job reads, and how. None: not said."""

    dataset: str
    dataset_id: str | None = None
    dataset_bytes: int | None = None
    speed_bytes_per_s: float | None = None
    passes: float | None = None
    regular: bool = True
    repeats_items: bool = False
    order: ReadingOrder = "random"


@dataclass(frozen=True, slots=True)
class Given:
    """The allocation of a pod. None: no limit."""

    cache_bytes: int | None = None
    """The quota of its dataset."""
    cache_id: str | None = None
    """The id of that dataset; None: whichever has the name."""
    io_bytes_per_s: float | None = None
    """The pod's part of its job's remote IO."""

    def values(self, prefix: str) -> dict[str, str | None]:
        """Return the annotations that say so; None for one that has to be missing."""
        cache, rate = self.cache_bytes, self.io_bytes_per_s
        return {
            prefix + CACHE: None if cache is None else str(cache),
            prefix + CACHE_ID: None if cache is None else self.cache_id,
            prefix + REMOTE_IO: None if rate is None else str(round(rate)),
        }


class Annotations:
    """The values of one pod, and what is wrong with them."""

    def __init__(self, values: Mapping[str, str], prefix: str) -> None:
        self._values, self._prefix = values, prefix
        self.errors: list[str] = []
        """The annotations that are ignored, each with the reason."""

    def asked(self) -> Asked | None:
        """Return the request of the pod; None if it names no dataset."""
        dataset = self._read("dataset", _dataset)
        if dataset is None:
            return None
        order = self._read("order", _order) or "random"
        return Asked(
            dataset,
            self._read("dataset-id", _id),
            self._read("dataset-bytes", _positive_size),
            self._read("speed", _positive_rate),
            self._read("passes", _passes),
            self._read("regular", _truth) is not False,
            bool(self._read("repeats-items", _truth)) or order == "draws",
            order,
        )

    def given(self) -> Given:
        """Return what the pod was given."""
        return Given(
            self._read(CACHE, _size), self._read(CACHE_ID, _id), self._read(REMOTE_IO, _rate)
        )

    @property
    def dataset(self) -> str | None:
        """The dataset that the pod reads."""
        return self._read("dataset", _dataset)

    def _read(self, name: str, read: Callable[[str], Value]) -> Value | None:
        text = self._values.get(self._prefix + name)
        if text is None:
            return None
        try:
            return read(text.strip())
        except ValueError as error:
            said = f"{self._prefix}{name} of {text[:80]!r}: {error}"
            if said not in self.errors:
                self.errors.append(said)
            return None


def _dataset(text: str) -> str:
    if not 1 <= len(text) <= 255 or not text.isprintable():
        raise UsageError("it is no name of a dataset")
    return text


def _id(text: str) -> str:
    if not _ID.fullmatch(text):
        raise UsageError("it is no id of a dataset, which has 32 hexadecimal digits")
    return text


def _size(text: str) -> int:
    size = parse_size(text)
    if size > MOST_DATASET_BYTES:
        raise UsageError(f"more than {MOST_DATASET_BYTES} bytes is a mistake of units")
    return size


def _positive_size(text: str) -> int:
    size = _size(text)
    if not size:
        raise UsageError("it must be more than 0")
    return size


def _rate(text: str) -> float:
    rate = byte_rate("it", text)
    if not 0 <= rate <= MOST_BYTES_PER_S:
        raise UsageError(f"it must be 0 to {MOST_BYTES_PER_S:g} bytes/s")
    return rate


def _positive_rate(text: str) -> float:
    rate = _rate(text)
    if not rate:
        raise UsageError("it must be more than 0")
    return rate


def _passes(text: str) -> float:
    try:
        passes = float(text)
    except ValueError:
        passes = math.nan
    if not 0 < passes <= MOST_PASSES:
        raise UsageError(f"it must be a number above 0, at most {MOST_PASSES:g}")
    return passes


def _truth(text: str) -> bool:
    if text.lower() not in _TRUTHS:
        raise UsageError("it must be yes or no")
    return _TRUTHS[text.lower()]


def _order(text: str) -> ReadingOrder:
    for order in get_args(ReadingOrder):
        if text == order:
            found: ReadingOrder = order
            return found
    raise UsageError(f"it must be one of {', '.join(get_args(ReadingOrder))}")
