"""A supervisor of servers that serve nothing: what it does when one hangs at its end."""

import subprocess
import sys
from pathlib import Path

from tests.eventually import PATIENCE_S, eventually

TIMEOUT_S = PATIENCE_S

PROGRAM = """
import ctypes, os, sys, threading, time
from pathlib import Path
from dieselfs.fuse.supervision.supervisor import Handed, Role, Supervisor

folder = Path(sys.argv[1])

def serve(handed: Handed) -> int:
    if handed.role is Role.RESUME:
        handed.is_ready()
        (folder / "resumed").touch()
        wait_for("end")
        return 0

    def hang() -> None:
        wait_for("go")
        os._exit(0)

    threading.Thread(target=hang).start()
    handed.keep({"front": "none"})
    handed.is_ready()
    ctypes.CDLL(None).syscall(60, 0)  # exit(2) ends this thread alone: a process that is killed so hangs
    raise AssertionError

def wait_for(name: str) -> None:
    while not (folder / name).exists():
        time.sleep(0.01)

sys.exit(Supervisor(serve, [sys.executable]).run())
"""


def test_a_server_that_hangs_at_its_end_is_replaced(tmp_path: Path) -> None:
    command = [sys.executable, "-c", PROGRAM, tmp_path]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as supervisor:
        try:
            eventually((tmp_path / "resumed").exists, "another server")
            assert supervisor.poll() is None
        finally:
            (tmp_path / "go").touch()
            (tmp_path / "end").touch()
        _, errors = supervisor.communicate(timeout=TIMEOUT_S)
        assert supervisor.returncode == 0
    assert "hangs during its shutdown" in errors
