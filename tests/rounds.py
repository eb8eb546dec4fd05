"""A plugin of pytest that runs tests in rounds: `pytest -p tests.rounds --rounds 20 -n 8`.

One collection serves all rounds: those of eight workers take 40 s of CPU time. Workers take the
files of a round one after the other, and then those of the next one. The name of a test ends with
its round. A failure is shown at once, for rounds take hours. Tests of `unittest` have no parameters
and so no rounds: leave them out.
"""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from xdist.scheduler import LoadFileScheduling

_PARAMETER = "round_of_all"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--rounds", type=int, default=1, help="run each test so many times")


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    # Each round makes another object of a test's class.
    checks = [HealthCheck.differing_executors]
    settings.register_profile("rounds", settings.default, suppress_health_check=checks)
    settings.load_profile("rounds")
    terminal = config.pluginmanager.get_plugin("terminalreporter")
    if terminal is not None:  # a worker has none
        config.pluginmanager.register(_Failures(terminal))


@pytest.fixture(name=_PARAMETER)
def round_of_all(request: pytest.FixtureRequest) -> int:
    return int(request.param)


@pytest.hookimpl(trylast=True)
def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    rounds = range(1, metafunc.config.option.rounds + 1)
    metafunc.fixturenames.append(_PARAMETER)
    metafunc.parametrize(_PARAMETER, rounds, indirect=True, ids=[f"round {n}" for n in rounds])


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Function]) -> None:
    items.sort(key=lambda item: item.callspec.params[_PARAMETER])


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadFileScheduling:
    config.option.loadscopereorder = False  # else the largest files of all rounds come first
    return _FilesOfRounds(config, log)


class _Failures:
    """Shows each failure when it is known."""

    def __init__(self, terminal: pytest.TerminalReporter) -> None:
        self._terminal = terminal

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self._terminal.ensure_newline()
            self._terminal.section(report.nodeid)
            self._terminal.write_line(report.longreprtext)
            for name, text in report.sections:  # what was captured
                self._terminal.write_line(f"-- {name}\n{text}")


class _FilesOfRounds(LoadFileScheduling):
    """Lets one worker have the tests of a file in a round."""

    def _split_scope(self, nodeid: str) -> str:
        [number] = re.findall(r"round (\d+)\]$", nodeid)
        return f"{number} {super()._split_scope(nodeid)}"
