"""A plugin of pytest that shows what takes the suite's processor time: `pytest -p
tests.processor_time -n 6`.

The time of a test is that of all processes that it starts, daemons of mounts and servers too, with
its set-up and tear-down. Each worker has a control group for this, so it needs root. What a daemon
does after its test counts for the next test of the worker.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Generator
from contextlib import suppress
from pathlib import Path

import pytest

_GROUPS = {  # where groups are made, and the file of the time and its unit in seconds
    Path("/sys/fs/cgroup/cpuacct"): ("cpuacct.usage", 1e-9),
    Path("/sys/fs/cgroup"): ("cpu.stat", 1e-6),
}
_KEY = "processor_s"
_SHOWN = 60


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    if config.pluginmanager.has_plugin("terminalreporter"):
        config.pluginmanager.register(_Report())
    if hasattr(config, "workerinput") or not config.getoption("numprocesses", None):
        config.pluginmanager.register(_Meter())


class _Meter:
    """Notes the time of each test in this process."""

    def __init__(self) -> None:
        root = next(folder for folder in _GROUPS if folder.is_dir())
        name, self._unit_s = _GROUPS[root]
        self._group = root / f"dieselfs-tests-{os.getpid()}"
        self._group.mkdir()
        _enter(self._group)
        self._file = self._group / name
        self._before_s = 0.0

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_setup(self) -> Generator[None, None, None]:
        self._before_s = self._used_s()
        yield

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_teardown(self, item: pytest.Item) -> Generator[None, None, None]:
        try:
            yield
        finally:
            item.user_properties.append((_KEY, self._used_s() - self._before_s))

    @pytest.hookimpl(trylast=True)
    def pytest_unconfigure(self) -> None:
        _enter(self._group.parent)
        with suppress(OSError):  # a process that pytest keeps may be left
            self._group.rmdir()

    def _used_s(self) -> float:
        # `cpu.stat` begins with `usage_usec N`; the other file has the number alone.
        return int(self._file.read_text().split("\n")[0].split()[-1]) * self._unit_s


def _enter(group: Path) -> None:
    (group / "cgroup.procs").write_text(str(os.getpid()))


class _Report:
    """Shows the tests and the folders that took most."""

    def __init__(self) -> None:
        self._tests: dict[str, float] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "teardown":
            self._tests[report.nodeid] = dict(report.user_properties).get(_KEY, 0.0)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        folders: Counter[str] = Counter()
        for name, used_s in self._tests.items():
            folders["/".join(name.split("::")[0].split("/")[:3])] += used_s
        total_s = sum(self._tests.values())
        terminalreporter.section(f"{total_s:.0f} s of processor time in {len(self._tests)} tests")
        for times in (folders, Counter(self._tests)):
            for name, used_s in times.most_common(_SHOWN):
                terminalreporter.write_line(f"{used_s:7.1f} s  {name}")
