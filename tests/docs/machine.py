"""Commands on a machine to throw away: see machine.sh, which makes it."""

import os
import subprocess
from pathlib import Path

SCRIPT = Path(__file__).with_name("machine.sh")
NAMESPACES = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]


def why_there_is_none() -> str:
    """Return why this process cannot make a machine, or nothing."""
    if os.geteuid() != 0:
        return "only root can make a machine to throw away"
    tried = subprocess.run(
        [*NAMESPACES, "--net", "mount", "-t", "tmpfs", "none", "/tmp"], check=False
    )
    return "" if tried.returncode == 0 else "this process may not make namespaces"


def command_on_machine(built: Path, checkout: Path, disk: Path, command: list[str]) -> list[str]:
    """Return the command that runs `command` in `checkout` of a new machine without a network.

    `built` is the folder that is seen at `checkout`, and `disk` an empty folder for what is
    written.
    """
    paths = [os.fspath(path) for path in (built, checkout, disk)]
    return [*NAMESPACES, "--net", "bash", os.fspath(SCRIPT), *paths, *command]


def build(built: Path, checkout: Path, disk: Path, command: list[str]) -> None:
    """Run a command that writes into `built`, which it sees at `checkout`. It has the network."""
    machine = [
        word for word in command_on_machine(built, checkout, disk, command) if word != "--net"
    ]
    subprocess.run(machine, check=True, env={**os.environ, "WRITABLE": "1"})
