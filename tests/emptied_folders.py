"""A plugin of pytest that empties the folder `tmp_path` of each test that passed.

Twenty rounds of the racy part would fill 130 GB otherwise. The empty folder stays: it keeps its
number, so no later test of the same name has the path of an earlier one. The folder of a test that
failed stays as it is.
"""

from __future__ import annotations

import shutil
from collections.abc import Generator
from pathlib import Path

import pytest

_HAS_FAILED = pytest.StashKey[bool]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.failed:
        item.stash[_HAS_FAILED] = True
    if report.when == "teardown" and _HAS_FAILED not in item.stash:
        folder: Path | None = getattr(item, "funcargs", {}).get("tmp_path")
        if folder is not None:
            # A program of the test that still ends may remove its files at the same time.
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(exist_ok=True)
    return report
