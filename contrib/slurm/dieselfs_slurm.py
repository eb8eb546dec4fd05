#!/usr/bin/python3
"""What the prolog and the epilog of Slurm do for a job that reads DieselFS.

A user says it in the comment of the job:

    #SBATCH --comment="dieselfs:dataset=imagenet,speed=114MB/s,passes=90"

Slurm's controller then runs `dlcmd alloc job add` when the job gets its nodes, and `dlcmd alloc job
rm` when it has ended, in whichever way. With `mount=yes` each node mounts the dataset for the time
of the job. `hook` starts this program, and `settings.env` beside it says what is allowed.
By hand, `--check COMMENT` shows what would be run, and `--sweep` undoes what no epilog has undone.

It needs Python 3.7 and its standard library alone, so that it can report a `dlcmd` that is broken.
"""

from __future__ import annotations

import fnmatch
import json
import os
import re
import signal
import subprocess
import sys
import syslog
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

FORM = "dieselfs:dataset=NAME[,speed=RATE][,passes=N][,gpus=N][,mount=yes]"
_MARK = re.compile(r"(?:^|[\s;])dieselfs:([^\s;]*)")
_VALUES = {
    "dataset": re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}(?:@[A-Za-z0-9._-]{1,128})?"),
    "speed": re.compile(r"[0-9][0-9.]*(?:e[0-9]+)?[A-Za-z/]*"),
    "passes": re.compile(r"[0-9][0-9.]*"),
    "gpus": re.compile(r"[0-9]+"),
    "mount": re.compile(r"yes|no"),
}
"""No value can be taken for an option, whatever a user writes."""
_JOB_ID = re.compile(r"[0-9]+")
_PREFIX = "DIESELFS_SLURM_"
_SETTINGS = {"DLCMD", "DECLARE", "LIMIT_S", "MOUNTS", "DATASETS", "MOUNT_LIMIT_S", "LOG"}
_MOST_LOGGED_BYTES = 2000


class Wish(NamedTuple):
    """What a job's comment asks for; texts as the user wrote them, empty if he did not."""

    dataset: str
    speed: str = ""
    passes: str = ""
    gpus: str = ""
    mount: str = "no"


class Settings(NamedTuple):
    """What an administrator has set; see `settings.env`."""

    dlcmd: str = "/usr/local/bin/dlcmd"
    declared_by: str = "controller"
    limit_s: float = 2.0
    mounts: Path | None = None
    """The folder of mountpoints, which have the names of their jobs."""
    datasets: tuple[str, ...] = ()
    mount_limit_s: float = 20.0
    log: Path | None = None
    environment: tuple[tuple[str, str], ...] = ()
    """Variables of `dlcmd`."""


class Step(NamedTuple):
    """One `dlcmd`, and the directory that it mounts or unmounts."""

    arguments: Sequence[str]
    limit_s: float
    made: Path | None = None
    """A mountpoint to make before it."""
    removed: Path | None = None
    """A mountpoint to remove after it."""


def wish_of(comment: str) -> Wish | None:
    """Return what the comment of a job asks for; None if it does not name DieselFS.

    Other words may stand before and behind. Raises `ValueError` for what is no wish.
    """
    found = _MARK.search(comment)
    if found is None:
        return None
    values: dict[str, str] = {}
    for part in found[1].split(","):
        name, _, value = part.partition("=")
        if name not in _VALUES or name in values:
            raise ValueError(f"{part!r} in the comment: write {FORM}")
        if not _VALUES[name].fullmatch(value):
            raise ValueError(f"{name} of {value!r} in the comment: write {FORM}")
        values[name] = value
    if "dataset" not in values:
        raise ValueError(f"the comment names no dataset: write {FORM}")
    return Wish(**values)


def settings_of(text: str) -> Settings:
    """Return the settings of a file of NAME=VALUE lines. Raises `ValueError` for what is wrong."""
    lines = (line.strip() for line in text.splitlines())
    values = dict(_assignment(line) for line in lines if line and not line.startswith("#"))
    names = [name for name in values if name.startswith(_PREFIX)]
    ours = {name[len(_PREFIX) :]: values.pop(name) for name in names}
    for name in ours.keys() - _SETTINGS:
        raise ValueError(f"{_PREFIX}{name} is no setting")
    default, patterns = Settings(), ours.get("DATASETS", "").split(",")
    settings = Settings(
        dlcmd=ours.get("DLCMD", default.dlcmd),
        declared_by=ours.get("DECLARE", default.declared_by),
        limit_s=float(ours.get("LIMIT_S", default.limit_s)),
        mounts=Path(ours["MOUNTS"]) if "MOUNTS" in ours else None,
        datasets=tuple(part.strip() for part in patterns if part.strip()),
        mount_limit_s=float(ours.get("MOUNT_LIMIT_S", default.mount_limit_s)),
        log=Path(ours["LOG"]) if "LOG" in ours else None,
        environment=tuple(values.items()),
    )
    if settings.declared_by not in ("controller", "nodes"):
        raise ValueError(f"{_PREFIX}DECLARE={settings.declared_by}: write controller or nodes")
    return settings


def _assignment(line: str) -> tuple[str, str]:
    name, is_there, value = line.partition("=")
    if not is_there:
        raise ValueError(f"{line!r} is not NAME=VALUE")
    return name.strip(), value.strip()


def steps_of(environment: Mapping[str, str], settings: Settings) -> list[Step]:
    """Return what is to be run in the hook whose environment is given, in this order.

    Raises `ValueError` for a comment that is wrong, and for what is not allowed.
    """
    moment, _, where = environment.get("SLURM_SCRIPT_CONTEXT", "").partition("_")
    job, comment = environment.get("SLURM_JOB_ID", ""), environment.get("SLURM_JOB_COMMENT", "")
    if (
        moment not in ("prolog", "epilog")
        or where not in ("slurmctld", "slurmd")
        or not _JOB_ID.fullmatch(job)
    ):
        raise ValueError(
            "this is no prolog or epilog: SLURM_SCRIPT_CONTEXT and SLURM_JOB_ID say so"
        )
    declares = where == ("slurmd" if settings.declared_by == "nodes" else "slurmctld")
    if moment == "epilog":
        # What the prolog did is undone even if the comment was changed, or is wrong.
        forgets = declares and _may_be_declared(comment)
        unmounted = _unmounted(job, settings) if where == "slurmd" else []
        return unmounted + ([_forgotten(job, settings)] if forgets else [])
    wish = wish_of(comment)
    if wish is None:
        return []
    declared = [_declared(job, wish, settings)] if declares and wish.speed else []
    is_mounted = where == "slurmd" and wish.mount == "yes"
    return declared + ([_mounted(job, wish, environment, settings)] if is_mounted else [])


def _may_be_declared(comment: str) -> bool:
    try:
        wish = wish_of(comment)
    except ValueError:
        return True
    return wish is not None and bool(wish.speed)


def _declared(job: str, wish: Wish, settings: Settings) -> Step:
    given = {"speed": wish.speed, "passes": wish.passes, "gpus": wish.gpus}
    options = [f"--{name}={value}" for name, value in given.items() if value]
    dataset = wish.dataset.partition("@")[0]
    return Step(["alloc", "job", "add", job, dataset, *options], settings.limit_s)


def _forgotten(job: str, settings: Settings) -> Step:
    return Step(["alloc", "job", "rm", job], settings.limit_s)


def _mounted(job: str, wish: Wish, environment: Mapping[str, str], settings: Settings) -> Step:
    if settings.mounts is None:
        raise ValueError("mount=yes: DIESELFS_SLURM_MOUNTS is not set, so there are no mounts")
    name = wish.dataset.partition("@")[0]
    if not any(fnmatch.fnmatchcase(name, pattern) for pattern in settings.datasets):
        raise ValueError(f"mount=yes: {name} is not in DIESELFS_SLURM_DATASETS")
    mountpoint = settings.mounts / job
    owner = [f"--{kind}={environment[f'SLURM_JOB_{kind.upper()}']}" for kind in ("uid", "gid")]
    options = ["--no-index", "--allow-other", f"--job={job}", *owner]
    arguments = ["mount", *options, wish.dataset, str(mountpoint)]
    return Step(arguments, settings.mount_limit_s, made=mountpoint)


def _unmounted(job: str, settings: Settings) -> list[Step]:
    mountpoint = settings.mounts / job if settings.mounts else None
    if mountpoint is None or not os.path.lexists(mountpoint):
        return []
    arguments = ["umount", "--lazy", str(mountpoint)]
    return [Step(arguments, settings.mount_limit_s, removed=mountpoint)]


def run(step: Step, settings: Settings) -> str:
    """Run one step; return what went wrong, or "". It ends in its time, and never raises."""
    try:
        if step.made is not None:
            step.made.mkdir(mode=0o755, parents=True, exist_ok=True)
        wrong = _run_dlcmd(step, settings)
        if step.removed is not None:
            step.removed.rmdir()
    except (OSError, ValueError) as error:
        return f"{' '.join(step.arguments)}: {error}"
    return wrong


def _run_dlcmd(step: Step, settings: Settings) -> str:
    """A file takes what `dlcmd` says: a daemon that it leaves behind would keep a pipe open."""
    shown = " ".join(step.arguments)
    with tempfile.TemporaryFile() as said:
        process = subprocess.Popen(
            [settings.dlcmd, "--quiet", *step.arguments],
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=said,
            env=variables_of(settings),
            cwd="/",
            start_new_session=True,  # Slurm ends the processes of a prolog's group
        )
        try:
            code = process.wait(step.limit_s)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            return f"{shown}: not done within {step.limit_s:g} s, and ended"
        said.seek(0)
        text = said.read(_MOST_LOGGED_BYTES).decode(errors="replace").strip()
    return f"{shown}: {text or f'exit code {code}'}" if code else ""


def variables_of(settings: Settings) -> dict[str, str]:
    """Return the environment of `dlcmd`."""
    variables = {"PATH": os.environ.get("PATH", os.defpath), "LANG": "C.UTF-8"}
    return {**variables, **dict(settings.environment)}


def log(settings: Settings, text: str, *, is_wrong: bool) -> None:
    """Write a line to syslog, and to the log file if there is one. Never raises."""
    line = " ".join(text.split())
    try:
        syslog.openlog("dieselfs-slurm", syslog.LOG_PID)
        syslog.syslog(syslog.LOG_WARNING if is_wrong else syslog.LOG_INFO, line)
        if settings.log is not None:
            stamp = time.strftime("%Y-%m-%dT%H:%M:%S%z")
            with settings.log.open("a") as file:
                file.write(f"{stamp} {line}\n")
    except (OSError, ValueError):
        pass


def hook(environment: Mapping[str, str], file: Path) -> None:
    """Do what the prolog or epilog is for; log what went wrong, and what was done."""
    settings = Settings()
    job = f"job {environment.get('SLURM_JOB_ID', '?')}"
    try:
        settings = settings_of(file.read_text()) if file.exists() else settings
        for step in steps_of(environment, settings):
            wrong = run(step, settings)
            log(settings, f"{job}: {wrong or ' '.join(step.arguments)}", is_wrong=bool(wrong))
    except Exception as error:
        log(settings, f"{job}: {error or type(error).__name__}", is_wrong=True)


def check(comment: str, file: Path) -> int:
    """Print what the hooks run for a job with this comment; 2 if the comment is wrong."""
    try:
        settings = settings_of(file.read_text()) if file.exists() else Settings()
        for context in ("prolog_slurmctld", "prolog_slurmd"):
            environment = {
                "SLURM_SCRIPT_CONTEXT": context,
                "SLURM_JOB_ID": "1",
                "SLURM_JOB_COMMENT": comment,
                "SLURM_JOB_UID": str(os.getuid()),
                "SLURM_JOB_GID": str(os.getgid()),
            }
            for step in steps_of(environment, settings):
                print("dlcmd", *step.arguments)
    except (OSError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def sweep(file: Path) -> int:
    """Forget and unmount for jobs that Slurm does not have any more; return 2 if that fails.

    Slurm is asked last, so a job that begins meanwhile stays. Jobs with other names than its ids,
    which people declare, stay too.
    """
    try:
        settings = settings_of(file.read_text()) if file.exists() else Settings()
        listed = [settings.dlcmd, "--quiet", "--json", "alloc", "job", "ls"]
        records = _said_by(listed, variables_of(settings)).splitlines()
        declared = [str(json.loads(record)["job"]) for record in records]
        mounts = settings.mounts
        mounted = os.listdir(mounts) if mounts and mounts.exists() else []
        queue = ["squeue", "--noheader", "--array", "--all", "--format=%A"]
        present = set(_said_by(queue, dict(os.environ)).split())
        steps = [_forgotten(job, settings) for job in _ended(declared, present)]
        for job in _ended(mounted, present):
            steps += _unmounted(job, settings)
        wrong = [run(step, settings) for step in steps]
    except (OSError, ValueError, KeyError, subprocess.SubprocessError) as error:
        wrong = [str(error)]
    for each in filter(None, wrong):
        print(f"error: {each}", file=sys.stderr)
    return 2 if any(wrong) else 0


def _ended(jobs: Sequence[str], present: set[str]) -> list[str]:
    return [job for job in jobs if _JOB_ID.fullmatch(job) and job not in present]


def _said_by(command: Sequence[str], variables: Mapping[str, str]) -> str:
    done = subprocess.run(
        command, env=variables, stdout=subprocess.PIPE, timeout=60, check=True, encoding="utf-8"
    )
    return done.stdout


def main(arguments: Sequence[str]) -> int:
    """Run a hook; with `--check COMMENT`, show what it would run; with `--sweep`, clear up."""
    file = Path(__file__).with_name("settings.env")
    if len(arguments) == 2 and arguments[0] == "--check":
        return check(arguments[1], file)
    if list(arguments) == ["--sweep"]:
        return sweep(file)
    if arguments:
        print("usage: dieselfs_slurm.py [--check COMMENT | --sweep]", file=sys.stderr)
        return 2
    hook(os.environ, file)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
