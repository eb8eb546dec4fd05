"""A supervisor of servers that serve nothing: one hangs at its end, one dies in a refresh, one
cannot be replaced at once."""

import json
import os
import resource
import signal
import socket
import subprocess
import sys
from pathlib import Path

from dieselfs.fuse.supervision.readiness import READY, VARIABLE
from tests.eventually import PATIENCE_S, eventually

TIMEOUT_S = PATIENCE_S

PROGRAM = """
import ctypes, os, sys, threading, time
from pathlib import Path
from dieselfs.fuse.supervision.handover import Handed, Role
from dieselfs.fuse.supervision.supervisor import Supervisor

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


DYING = """
import json, os, sys
from pathlib import Path
from dieselfs.fuse.supervision.handover import Handed, Role
from dieselfs.fuse.supervision.supervisor import Supervisor

folder = Path(sys.argv[1])

def serve(handed: Handed) -> int:
    if handed.role is Role.REFRESH:
        handed.keep({"front": "new"}, fuse=[0])  # as after its mount is shown
        return 3
    if handed.role is Role.FIRST:
        handed.keep({"front": "old"}, fuse=[0])
    handed.is_ready()
    (folder / f"{handed.state.get('front', 'first')}").write_text(str(os.getpid()))
    while (received := handed.channel.receive()) is not None:
        message, _ = received
        with open(folder / "told", "a") as told:
            told.write(json.dumps(message) + chr(10))
    return 1

sys.exit(Supervisor(serve, [sys.executable]).run())
"""


def test_a_refresh_whose_server_dies_after_it_was_shown_has_another_server(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", DYING, tmp_path]) as supervisor:
        try:
            eventually((tmp_path / "first").exists, "the first server")
            supervisor.send_signal(signal.SIGUSR1)
            eventually((tmp_path / "new").exists, "another server of the new mount")
            told = eventually(lambda: said(tmp_path, "superseded"), "the older server is told")
            assert told[-1]["superseded"]
            [ended] = eventually(lambda: said(tmp_path, "refreshes", running=False), "its end")[:1]
            assert ended["refreshes"] == {"attempts": 1, "running": False, "error": None}
        finally:
            supervisor.terminate()


def test_a_supervisor_that_cannot_start_a_server_tries_again(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as ready:
        ready.bind("")  # to an abstract name that the kernel chooses
        environment = {**os.environ, VARIABLE: "@" + ready.getsockname()[1:].decode()}
        with subprocess.Popen(
            [sys.executable, "-c", DYING, tmp_path],
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
        ) as supervisor:
            try:
                assert ready.recv(64) == READY, "it has all that another server needs"
                number = (tmp_path / "first").read_text
                first = int(eventually(number, "its number", ignored=FileNotFoundError))
                soft, hard = resource.prlimit(supervisor.pid, resource.RLIMIT_NOFILE)
                resource.prlimit(supervisor.pid, resource.RLIMIT_NOFILE, (3, hard))
                os.kill(first, signal.SIGKILL)
                assert supervisor.stderr is not None
                eventually(lambda: "no server can be started" in supervisor.stderr.readline())
                assert supervisor.poll() is None
                resource.prlimit(supervisor.pid, resource.RLIMIT_NOFILE, (soft, hard))
                eventually((tmp_path / "old").exists, "another server")
            finally:
                supervisor.terminate()


UPGRADED = """
import os, sys
from pathlib import Path
from dieselfs.fuse.supervision.handover import Handed
from dieselfs.fuse.supervision.supervisor import UPGRADE_VARIABLE, Supervisor

program, folder = sys.argv[1], Path(sys.argv[2])
fork = os.fork

def serve(handed: Handed) -> int:
    handed.keep({"front": "none"})
    handed.is_ready()
    (folder / str(handed.role)).write_text(str(os.getpid()))
    while handed.channel.receive() is not None:
        pass
    return 1

def refused() -> int:
    os.fork = fork
    raise BlockingIOError(11, "no more processes")

if UPGRADE_VARIABLE in os.environ:
    os.fork = refused

sys.exit(Supervisor(serve, [sys.executable, "-c", program, program, str(folder)]).run())
"""


def test_an_upgrade_that_can_start_no_server_leaves_the_one_before(tmp_path: Path) -> None:
    command = [sys.executable, "-c", UPGRADED, UPGRADED, tmp_path]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as supervisor:
        try:
            number = (tmp_path / "first").read_text
            first = int(eventually(number, "its number", ignored=FileNotFoundError))
            supervisor.send_signal(signal.SIGUSR2)
            assert supervisor.stderr is not None
            eventually(lambda: f"so {first} continues" in supervisor.stderr.readline())
            os.kill(first, signal.SIGKILL)
            eventually((tmp_path / "resume").exists, "another server after it")
        finally:
            supervisor.terminate()


def said(
    folder: Path, name: str, running: bool | None = None
) -> list[dict[str, dict[str, object]]]:
    """Return the messages of this name to the servers."""
    if not (folder / "told").exists():
        return []
    lines = (folder / "told").read_text().splitlines()
    messages = [message for line in lines if name in (message := json.loads(line))]
    if running is None:
        return messages
    return [message for message in messages if message[name]["running"] is running]
