"""A program delays its threads if, and only if, it is asked to."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

COUNTED = """
import sitecustomize, threading
slept = []
sitecustomize._sleep = slept.append
event = threading.Event()
event.set()
threading.Thread(target=event.wait).start()
print(len(slept))
"""


@pytest.mark.parametrize(("chance", "is_delayed"), [("1", True), ("0", False)])
def test_threads_are_delayed(chance: str, is_delayed: bool) -> None:
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent), "DELAYS": chance}
    command = [sys.executable, "-c", COUNTED]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert (int(done.stdout) > 4) == is_delayed
