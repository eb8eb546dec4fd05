"""What a test of the fault bench says of itself: the fault, the promise, the bound, and the check
without which it must fail.

`docs/reliability.md` is generated from these (`python -m tests.faults.report`), and `python -m
tests.faults.proof` takes out each check in turn and demands that its case fails.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.eventually import scaled_by_load


@dataclass(frozen=True, slots=True)
class FaultCase:
    fault: str
    """What is broken, killed or held back, and how: the byte changed, the process, the signal."""
    promise: str
    """What the user still gets."""
    bound_s: float
    """The longest that anybody may be kept waiting. For slow machines: what is measured is reported
    beside it."""
    check: str | Mapping[str, str] | None
    """`module:name=what`, see `taken_out/sitecustomize.py`; several are joined by ` + `, where each
    of them finds the damage. A mapping has a check for each id of the test's parameters; a case
    whose id it lacks is unproven. None: the promise rests on no single check, `why` says on what.
    """
    why: str = ""

    def check_of(self, parameters: str) -> str | None:
        """Return the check of the case whose parameters have this id, or None."""
        if isinstance(self.check, Mapping):
            return self.check.get(parameters)
        return self.check


def fault_case(
    fault: str,
    *,
    promise: str,
    bound_s: float,
    check: str | Mapping[str, str] | None = None,
    why: str = "",
) -> Any:
    """Mark a test as a case of the bench.

    One of `check` and `why` is given; with a mapping that lacks parameters, both may be.
    """
    assert isinstance(check, Mapping) or (check is None) != (not why), (
        "name the check, or say what else the promise rests on"
    )
    return pytest.mark.fault(FaultCase(fault, promise, bound_s, check, why))


@dataclass(slots=True)
class Measured:
    """What one case saw; the fixture `measured`."""

    bound_s: float
    results: list[str] = field(default_factory=list)
    longest_s: float = 0.0

    def note(self, result: str) -> None:
        """A line for the table: `EIO for 3 of 64 files`."""
        self.results.append(result)

    @contextmanager
    def felt(self) -> Iterator[None]:
        """What a user waits for: must end within the case's bound, whatever comes of it."""
        started = time.monotonic()
        try:
            yield
        finally:
            self.longest_s = max(self.longest_s, time.monotonic() - started)
        assert self.longest_s <= scaled_by_load(self.bound_s), (
            f"took {self.longest_s:.1f} s, promised: {self.bound_s}"
        )

    def call(self, function: Callable[[], Any]) -> Any:
        """The result of `function`, or the exception that it raised, timed by `felt`."""
        with self.felt():
            try:
                return function()
            except Exception as error:
                return error
