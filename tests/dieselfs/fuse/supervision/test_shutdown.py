"""The one deadline of a mount's end, and the kernel's part in it."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from dieselfs.fuse.supervision.shutdown import FORCED_S, ORDERLY_S, Shutdown


def test_before_it_has_begun_every_part_takes_its_own_time() -> None:
    ending = Shutdown(clock=lambda: 1000.0)
    assert [ending.left_s(most_s) for most_s in (0.5, 60.0)] == [0.5, 60.0]


def test_what_one_part_has_waited_the_next_ones_lack() -> None:
    now = [1000.0]
    ending = Shutdown(clock=lambda: now[0])
    ending.begin()
    waited = []
    for most_s in (2.5, 0.5, 1.0, 1.0, 10.0):
        waited.append(ending.left_s(most_s))
        now[0] += waited[-1]
        ending.begin()  # only the first call counts
    assert waited == [2.5, 0.5, 1.0, 0.0, 0.0]
    assert sum(waited) == ORDERLY_S < FORCED_S < 5.0
    now[0] += 100.0
    assert ending.left_s(1.0) == 0.0


HANGS = """
import signal, sys
import dieselfs.fuse.supervision.shutdown as ending
ending.FORCED_S = 0.2
for number in (signal.SIGTERM, signal.SIGALRM, signal.SIGINT):
    signal.signal(number, signal.SIG_IGN)
ending.Shutdown(forced=sys.argv[1] == "forced").begin()
{}
"""
HELD_LOCK = """
import ctypes
ctypes.PyDLL(None).sleep(30)  # it holds the interpreter's lock
"""
STUCK_THREAD = """
import threading
threading.Thread(target=threading.Event().wait).start()  # the interpreter waits for it at the end
"""


@pytest.mark.parametrize("how", [HELD_LOCK, STUCK_THREAD])
def test_whatever_hangs_is_ended_by_the_kernel(how: str) -> None:
    command = [sys.executable, "-c", HANGS.format(how), "forced"]
    assert subprocess.run(command, timeout=60).returncode == -signal.SIGALRM


def test_a_process_that_has_more_to_do_is_not_ended() -> None:
    command = [sys.executable, "-c", HANGS.format("import time; time.sleep(0.5)"), "not forced"]
    assert subprocess.run(command, timeout=60).returncode == 0
