"""The rewriting of asserts, shared among the workers of a run.

pytest rewrites the asserts of each module of tests before its import and keeps the compiled module.
In a new clone every worker would do so with every module at the same moment, 10 s of CPU time each.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from _pytest.assertion import rewrite


def rewrite_share(config: pytest.Config) -> None:
    """Rewrite this worker's share of the modules that are collected and not rewritten yet.

    pytest has no public call for that. A release whose own names have changed rewrites as ever.
    """
    worker: dict[str, Any] | None = getattr(config, "workerinput", None)
    if worker is not None and not sys.dont_write_bytecode:
        with suppress(AttributeError):
            _rewrite(config, worker)


def _rewrite(config: pytest.Config, worker: dict[str, Any]) -> None:
    number, count = int(worker["workerid"].removeprefix("gw")), int(worker["workercount"])
    state = config.stash[rewrite.assertstate_key]
    for file in _modules(config)[number::count]:
        folder = rewrite.get_cache_dir(file)
        compiled = folder / (file.stem + rewrite.PYC_TAIL)
        if rewrite.try_makedirs(folder) and rewrite._read_pyc(file, compiled) is None:
            with suppress(SyntaxError):  # which the import of the module reports
                status, code = rewrite._rewrite_test(file, config)
                rewrite._write_pyc(state, code, status, compiled)


def _modules(config: pytest.Config) -> list[Path]:
    """Return the modules of tests below the run's arguments, the largest first."""
    places = [Path(config.invocation_params.dir, each.partition("::")[0]) for each in config.args]
    found = {file for place in places for file in place.rglob("test_*.py")}
    return sorted(found, key=lambda file: (-file.stat().st_size, file))
