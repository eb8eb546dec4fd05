"""A stop signal may come at any moment, also while another one is being handled."""

import os
import signal
import subprocess
import sys

import pytest

_INTERRUPTED = """
import signal, sys
from dieselfs.cli.stop_signals import StopSignals

stop = StopSignals()
stop.wait(0.001)
assert not stop.is_received
sent = 0

def interrupt(*_):
    global sent
    sent += 1
    signal.raise_signal(signal.SIGTERM)

sys.setprofile(interrupt)  # called at each call and return within the handler
signal.raise_signal(signal.SIGTERM)
sys.setprofile(None)
assert sent > 3, sent
stop.wait()
assert stop.is_received
"""
_WAITING = """
from dieselfs.cli.stop_signals import StopSignals

stop = StopSignals()
print("waits", flush=True)
stop.wait()
stop.ignore()
print("ends", flush=True)
input()
"""


def test_a_signal_within_the_handler_of_another_is_handled() -> None:
    subprocess.run([sys.executable, "-c", _INTERRUPTED], check=True, timeout=120)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_wait_and_further_ones_are_ignored(number: signal.Signals) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", _WAITING],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as waiting:
        assert waiting.stdout is not None
        assert waiting.stdout.readline() == "waits\n"
        os.kill(waiting.pid, number)
        assert waiting.stdout.readline() == "ends\n"
        os.kill(waiting.pid, number)
        waiting.communicate("\n", timeout=120)
    assert waiting.returncode == 0
