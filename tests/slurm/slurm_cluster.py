"""A real Slurm on loopback: its own munged, slurmctld and two slurmd, everything in one folder.

All daemons are children of this process, in the foreground, and are ended by their process ids.
"""

from __future__ import annotations

import os
import re
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.eventually import eventually

NODES: Final = ("n1", "n2")
IO_LICENSES: Final = 4000
_PATH: Final = f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin"
_END_S: Final = 30.0
_REQUEUED_S: Final = 20
"""The seconds after which credentials expire, and until which requeued jobs wait."""


@dataclass(frozen=True, slots=True)
class SlurmCluster:
    folder: Path
    hooks: Path
    """The folder of the hook and its settings, as an administrator has copied it."""

    @property
    def log(self) -> Path:
        """The log of the hooks."""
        return self.folder / "log/hooks"

    def run(self, *command: str | Path) -> str:
        """Run one of Slurm's commands; return what it prints."""
        done = subprocess.run(
            command,
            env=self._environment(),
            cwd="/",
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, f"{command}: {done.stderr}"
        return done.stdout.strip()

    def submit(self, script: str, *options: str) -> str:
        """Submit a job that runs a script of the shell; return its id."""
        output = f"--output={self.folder}/out/%j"
        return self.run("sbatch", "--parsable", output, *options, f"--wrap={script}")

    def output(self, job: str) -> str:
        return (self.folder / "out" / job).read_text()

    def state(self, job: str) -> str:
        """Return the state of a job, such as RUNNING or COMPLETED."""
        found = re.search(r"\bJobState=(\S+)", self.run("scontrol", "show", "job", job))
        assert found, job
        return found[1]

    def until(self, job: str, *states: str) -> str:
        """Wait until a job is in one of the states; return it."""

        def state() -> str:
            found = self.state(job)
            return found if found in states else ""

        return eventually(state, f"job {job} is {' or '.join(states)}")

    def node_states(self) -> set[str]:
        return set(self.run("sinfo", "--noheader", "--Node", "--format=%T").split())

    def cancel_all(self) -> None:
        """Cancel what is left, and wait until its epilogs have ended."""
        self.run("scancel", "--user=root", "--full")
        self.run("scancel", "--user=nobody")
        eventually(lambda: not self.run("squeue", "--noheader"), "no job in the queue")
        eventually(lambda: self.node_states() == {"idle"}, "all nodes are idle")

    def _environment(self) -> dict[str, str]:
        return {**os.environ, "PATH": _PATH, "SLURM_CONF": str(self.folder / "slurm.conf")}


@contextmanager
def slurm_cluster(hooks: Path) -> Iterator[SlurmCluster]:
    """Start a cluster whose prologs and epilogs are `hooks`/hook, and end it."""
    with tempfile.TemporaryDirectory(prefix="dieselfs-slurm-") as made, ExitStack() as daemons:
        folder = Path(made)
        folder.chmod(0o755)  # other users run jobs, too
        for name in ("munge", "state", "log", "out"):
            (folder / name).mkdir()
        (folder / "out").chmod(0o1777)
        (folder / "slurm.conf").write_text(_configuration(folder, hooks))
        cluster = SlurmCluster(folder, hooks)
        _start_munge(folder, daemons)
        _start(cluster, daemons, "slurmctld", "-D", "-f", folder / "slurm.conf")
        for node in NODES:
            _start(cluster, daemons, "slurmd", "-D", "-N", node, "-f", folder / "slurm.conf")
        eventually(
            lambda: cluster.node_states() == {"idle"}, "two idle nodes", ignored=AssertionError
        )
        yield cluster
        cluster.cancel_all()


def _start_munge(folder: Path, daemons: ExitStack) -> None:
    munge = folder / "munge"
    key = munge / "key"
    key.write_bytes(os.urandom(1024))
    key.chmod(0o600)
    files = {"key": "key", "socket": "socket", "pid": "pid", "log": "log", "seed": "seed"}
    options = [
        f"--{name}{'' if name == 'socket' else '-file'}={munge / file}"
        for name, file in files.items()
    ]
    cluster = SlurmCluster(folder, folder)
    _start(cluster, daemons, "munged", "--foreground", "--force", *options)
    eventually((munge / "socket").exists, "the socket of munged")


def _start(cluster: SlurmCluster, daemons: ExitStack, *command: str | Path) -> None:
    with (cluster.folder / "log" / f"{command[0]}.out").open("ab") as said:
        process = subprocess.Popen(
            command, env=cluster._environment(), stdin=subprocess.DEVNULL, stdout=said, stderr=said
        )
    daemons.callback(_end, process)


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(_END_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _configuration(folder: Path, hooks: Path) -> str:
    host = socket.gethostname().partition(".")[0]
    ctld, *ports = _free_ports(1 + len(NODES))
    nodes = "\n".join(
        f"NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs=4"
        for name, port in zip(NODES, ports, strict=True)
    )
    return f"""
ClusterName=tests
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ctld}
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket,cred_expire={_REQUEUED_S}
SlurmUser=root
SlurmdUser=root
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool.%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
SlurmctldLogFile={folder}/log/slurmctld
SlurmdLogFile={folder}/log/slurmd.%n
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SwitchType=switch/none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
SchedulerParameters=sched_interval=1,bf_interval=1,batch_sched_delay=0,sched_min_interval=0
KillWait=5
ReturnToService=2
PrologFlags=Alloc
PrologSlurmctld={hooks}/hook
EpilogSlurmctld={hooks}/hook
Prolog={hooks}/hook
Epilog={hooks}/hook
Licenses=dieselfs_io:{IO_LICENSES}
{nodes}
PartitionName=all Nodes={",".join(NODES)} Default=YES MaxTime=INFINITE State=UP
"""


def _free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
