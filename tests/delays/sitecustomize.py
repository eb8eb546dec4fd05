"""Random delays where threads and processes meet, in a test and in all programs that it starts.

Python runs this module at its start if this folder is in PYTHONPATH; `DELAYS=0.005
scripts/test-racy.sh 1` sees to that. DELAYS is the chance of a delay at each place, DELAYS_S the
longest one. So a round meets orders of events that else need a machine that stalls.
"""

from __future__ import annotations

import fcntl
import functools
import os
import random
import socket
import subprocess
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Final

CHANCE: Final = float(os.environ.get("DELAYS", "0"))
LONGEST_S: Final = float(os.environ.get("DELAYS_S", "0.5"))
_dice = random.Random(os.urandom(8))
_sleep = time.sleep  # tests patch clocks

PLACES: Final[dict[Any, dict[str, tuple[float, float]]]] = {
    threading.Event: {"set": (1, 1), "wait": (0, 1)},
    threading.Condition: {
        "__enter__": (1, 0),
        "__exit__": (0, 1),
        "notify": (1, 0),
        "notify_all": (1, 0),
        "wait": (0, 1),
    },
    threading.Thread: {"start": (2, 5), "_bootstrap_inner": (10, 5), "join": (2, 2)},
    Future: {"set_result": (1, 1), "set_exception": (1, 1), "result": (0, 1)},
    subprocess.Popen: {"__init__": (2, 20), "wait": (0, 5)},
    socket.socket: {"accept": (0, 2), "close": (0.5, 0.5)},
    fcntl: {"flock": (3, 3)},
    os: {
        "fork": (2, 10),
        **dict.fromkeys(("rename", "replace", "link", "unlink", "mkdir", "rmdir"), (1.0, 1.0)),
        **dict.fromkeys(("open", "fsync", "scandir", "kill", "truncate", "ftruncate"), (1.0, 1.0)),
    },
}
"""The places: a class or module, its functions, and the weights of a delay before and after."""


def _delay(weight: float) -> None:
    if weight and _dice.random() < CHANCE * weight:
        _sleep(_dice.random() * LONGEST_S)


def _delayed(function: Callable[..., Any], before: float, after: float) -> Callable[..., Any]:
    @functools.wraps(function)
    def delayed(*arguments: Any, **named: Any) -> Any:
        _delay(before)
        try:
            return function(*arguments, **named)
        finally:
            _delay(after)

    return delayed


if CHANCE:
    os.register_at_fork(after_in_child=lambda: _dice.seed(os.urandom(8)))
    for owner, places in PLACES.items():
        for name, weights in places.items():
            setattr(owner, name, _delayed(getattr(owner, name), *weights))
