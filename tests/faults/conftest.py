"""Collects what the cases of the fault bench measured, for the table in docs/reliability.md."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.case import FaultCase, Measured

RESULTS = "DIESELFS_FAULT_RESULTS"
"""A folder for one JSON file a case; nothing is written without it."""


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "fault(case): a case of the fault bench")


@pytest.fixture
def measured(request: pytest.FixtureRequest) -> Iterator[Measured]:
    """The case's bound, held, and what it saw, kept if it passes."""
    marker = request.node.get_closest_marker("fault")
    assert marker is not None, "a case of the fault bench is marked with fault_case"
    case: FaultCase = marker.args[0]
    found = Measured(case.bound_s)
    failed_before = request.session.testsfailed
    yield found
    folder = os.environ.get(RESULTS)
    if folder and request.session.testsfailed == failed_before:
        record = {
            "test": request.node.nodeid,
            **dataclasses.asdict(case),
            "longest_s": found.longest_s,
            "results": found.results,
        }
        name = request.node.nodeid.replace("/", ".").replace("::", "--")[:200]
        Path(folder, f"{name}.json").write_text(json.dumps(record))
