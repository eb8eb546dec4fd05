"""Processes of tests that read mounts. Python forks them from a server that has imported what they
need: a start of Python takes 0.2 s of processor time, and the tests start a hundred such processes.

They get their arguments pickled, as spawned processes do. Their environment and folder are those of
the first of them.
"""

import multiprocessing
from multiprocessing.context import ForkServerContext
from typing import Final

FORK_SERVER: Final[ForkServerContext] = multiprocessing.get_context("forkserver")
FORK_SERVER.set_forkserver_preload(["tests.mount.torture_readers", "tests.mount.reading_processes"])
