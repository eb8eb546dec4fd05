"""The prolog and epilog of Slurm, without Slurm, in the environment that Slurm 22.05 makes."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType

import pytest

from tests.conftest import processes_with
from tests.eventually import PATIENCE_S, eventually, scaled_by_load

FOLDER = Path(__file__).parents[2] / "contrib/slurm"
COMMENT = "dieselfs:dataset=imagenet,speed=114MB/s,passes=90,gpus=8"


def _loaded() -> ModuleType:
    spec = importlib.util.spec_from_file_location("dieselfs_slurm", FOLDER / "dieselfs_slurm.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


slurm = _loaded()


def environment(context: str, comment: str = COMMENT, job: str = "42") -> dict[str, str]:
    return {
        "SLURM_SCRIPT_CONTEXT": context,
        "SLURM_JOB_ID": job,
        "SLURM_JOB_COMMENT": comment,
        "SLURM_JOB_UID": "1000",
        "SLURM_JOB_GID": "100",
    }


def commands(context: str, comment: str = COMMENT, settings: str = "") -> list[str]:
    steps = slurm.steps_of(environment(context, comment), slurm.settings_of(settings))
    return [" ".join(step.arguments) for step in steps]


@pytest.mark.parametrize(
    ("comment", "wish"),
    [
        ("dieselfs:dataset=imagenet", ("imagenet", "", "", "", "no")),
        (COMMENT, ("imagenet", "114MB/s", "90", "8", "no")),
        ("sweep 7; dieselfs:speed=1e9,dataset=a.b-c_d; lr=3", ("a.b-c_d", "1e9", "", "", "no")),
        ("x\ndieselfs:dataset=pets@12-8d3f,mount=yes\ty", ("pets@12-8d3f", "", "", "", "yes")),
        ("dieselfs:dataset=a,passes=0.07,mount=no", ("a", "", "0.07", "", "no")),
    ],
)
def test_the_wish_of_a_comment(comment: str, wish: tuple[str, ...]) -> None:
    assert slurm.wish_of(comment) == wish


@pytest.mark.parametrize("comment", ["", "my run", "see notdieselfs:dataset=a", "dieselfs"])
def test_other_comments_ask_for_nothing(comment: str) -> None:
    assert slurm.wish_of(comment) is None
    assert commands("prolog_slurmctld", comment) == []
    assert commands("epilog_slurmctld", comment) == []


@pytest.mark.parametrize(
    ("comment", "said"),
    [
        ("dieselfs:", "'' in the comment"),
        ("dieselfs:speed=1MB/s", "names no dataset"),
        ("dieselfs:dataset=a,dataset=b", "'dataset=b' in the comment"),
        ("dieselfs:dataset=a,sped=1MB/s", "'sped=1MB/s' in the comment"),
        ("dieselfs:dataset=--help", "dataset of '--help'"),
        ("dieselfs:dataset=../etc", "dataset of '../etc'"),
        ("dieselfs:dataset=a,speed=-1MB/s", "speed of '-1MB/s'"),
        ("dieselfs:dataset=a,speed=$(reboot)", "speed of '$(reboot)'"),
        ("dieselfs:dataset=a,passes=nan", "passes of 'nan'"),
        ("dieselfs:dataset=a,gpus=1.5", "gpus of '1.5'"),
        ("dieselfs:dataset=a,mount=/etc", "mount of '/etc'"),
        ("dieselfs:dataset=a\u0660", "dataset of"),
        ("dieselfs:dataset=" + "a" * 129, "dataset of"),
    ],
)
def test_a_wrong_comment_says_what_is_wrong(comment: str, said: str) -> None:
    with pytest.raises(ValueError) as raised:
        slurm.wish_of(comment)
    assert said in str(raised.value)
    assert "write dieselfs:dataset=NAME" in str(raised.value)


def test_the_controller_declares_a_job_and_forgets_it() -> None:
    [declared] = commands("prolog_slurmctld")
    assert declared == "alloc job add 42 imagenet --speed=114MB/s --passes=90 --gpus=8"
    assert commands("epilog_slurmctld") == ["alloc job rm 42"]
    assert commands("prolog_slurmd") == commands("epilog_slurmd") == []


def test_nodes_declare_a_job_if_they_are_to() -> None:
    settings = "DIESELFS_SLURM_DECLARE=nodes"
    assert commands("prolog_slurmd", settings=settings)[0].startswith("alloc job add 42 ")
    assert commands("epilog_slurmd", settings=settings) == ["alloc job rm 42"]
    assert commands("prolog_slurmctld", settings=settings) == []
    assert commands("epilog_slurmctld", settings=settings) == []


def test_an_epilog_forgets_a_job_whose_comment_is_wrong() -> None:
    assert commands("epilog_slurmctld", "dieselfs:sped=1") == ["alloc job rm 42"]


def test_a_job_without_a_speed_is_not_declared_nor_forgotten() -> None:
    for context in ("prolog_slurmctld", "epilog_slurmctld"):
        assert commands(context, "dieselfs:dataset=pets,mount=yes") == []


def test_a_mount_is_made_where_the_administrator_says_and_removed(tmp_path: Path) -> None:
    settings = f"DIESELFS_SLURM_MOUNTS={tmp_path}\nDIESELFS_SLURM_DATASETS=imagenet*, pets"
    comment = "dieselfs:dataset=pets@7,mount=yes"
    mountpoint = tmp_path / "42"
    options = "--no-index --allow-other --job=42 --uid=1000 --gid=100"
    assert commands("prolog_slurmd", comment, settings) == [f"mount {options} pets@7 {mountpoint}"]
    assert commands("epilog_slurmd", comment, settings) == []
    mountpoint.mkdir()
    assert commands("epilog_slurmd", "changed", settings) == [f"umount --lazy {mountpoint}"]


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ("", "DIESELFS_SLURM_MOUNTS is not set"),
        ("DIESELFS_SLURM_MOUNTS=/mnt/jobs", "pets is not in DIESELFS_SLURM_DATASETS"),
        (
            "DIESELFS_SLURM_MOUNTS=/mnt/jobs\nDIESELFS_SLURM_DATASETS=imagenet*,PETS",
            "pets is not in DIESELFS_SLURM_DATASETS",
        ),
    ],
)
def test_a_mount_that_is_not_allowed_is_refused(settings: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        commands("prolog_slurmd", "dieselfs:dataset=pets,mount=yes", settings)


@pytest.mark.parametrize("job", ["", "../1", "4 2", "--all"])
def test_only_slurms_ids_are_jobs(job: str) -> None:
    with pytest.raises(ValueError, match="SLURM_JOB_ID"):
        slurm.steps_of(environment("prolog_slurmctld", job=job), slurm.Settings())


def test_the_settings_of_a_file() -> None:
    found = slurm.settings_of(
        "# a comment\n\nDIESELFS_SLURM_LIMIT_S=0.5\nDIESELFS_STORE=s3://a?b=c\nAWS_PROFILE = x\n"
    )
    assert found.limit_s == 0.5
    assert dict(found.environment) == {"DIESELFS_STORE": "s3://a?b=c", "AWS_PROFILE": "x"}
    assert slurm.settings_of((FOLDER / "settings.env").read_text()) == slurm.Settings()


@pytest.mark.parametrize(
    "text",
    ["export", "DIESELFS_SLURM_MOUNT=/x", "DIESELFS_SLURM_DECLARE=all", "DIESELFS_SLURM_LIMIT_S=x"],
)
def test_wrong_settings_are_refused(text: str) -> None:
    with pytest.raises(ValueError):
        slurm.settings_of(text)


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """The hook as it is copied, with a `dlcmd` that writes down how it was called."""
    folder = tmp_path / "dieselfs"
    shutil.copytree(FOLDER, folder)
    write_dlcmd(folder, 'echo "$@" >>"$CALLS"')
    return folder


def write_dlcmd(folder: Path, script: str, **settings: object) -> None:
    dlcmd = folder / "dlcmd"
    dlcmd.write_text(f"#!/bin/sh\n{script}\n")
    dlcmd.chmod(0o755)
    given = {"DLCMD": dlcmd, "LOG": folder / "log", "LIMIT_S": 50, **settings}
    lines = [f"DIESELFS_SLURM_{name}={value}" for name, value in given.items()]
    lines.append(f"CALLS={folder}/calls")
    (folder / "settings.env").write_text("\n".join(lines))


def run_hook(folder: Path, context: str, comment: str = COMMENT) -> float:
    """Run it as Slurm does, without a PATH; return the seconds that it took. It must succeed."""
    began = time.monotonic()
    done = subprocess.run(
        [folder / "hook"],
        env=environment(context, comment),
        capture_output=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
    return time.monotonic() - began


def test_the_hook_calls_dlcmd(installed: Path) -> None:
    run_hook(installed, "prolog_slurmctld")
    run_hook(installed, "epilog_slurmctld")
    added, removed = (installed / "calls").read_text().splitlines()
    assert added == "--quiet alloc job add 42 imagenet --speed=114MB/s --passes=90 --gpus=8"
    assert removed == "--quiet alloc job rm 42"
    assert "job 42: alloc job rm 42" in (installed / "log").read_text()


def test_the_hook_does_nothing_for_other_jobs(installed: Path) -> None:
    (installed / "dieselfs_slurm.py").write_text('#!/bin/sh\ntouch "$0.started"\n')
    started = installed / "dieselfs_slurm.py.started"
    mounts = installed / "jobs"
    contexts = ("prolog_slurmctld", "epilog_slurmctld", "prolog_slurmd", "epilog_slurmd")
    for settings in ({}, {"MOUNTS": mounts}):
        write_dlcmd(installed, "exit 1", **settings)
        for context in contexts:
            run_hook(installed, context, "my run")
            assert not started.exists()
    (mounts / "42").mkdir(parents=True)
    run_hook(installed, "epilog_slurmd", "my run")
    assert started.exists()  # it has a mount to remove


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("echo cannot reach index >&2; exit 3", "cannot reach index"),
        ("exit 7", "exit code 7"),
        ("kill -KILL $$", "exit code -9"),
    ],
)
def test_what_fails_is_logged_and_fails_no_job(installed: Path, script: str, said: str) -> None:
    write_dlcmd(installed, script)
    run_hook(installed, "prolog_slurmctld")
    assert (
        f"job 42: alloc job add 42 imagenet --speed=114MB/s --passes=90 --gpus=8: {said}"
        in (installed / "log").read_text()
    )


def test_a_hook_ends_in_its_time(installed: Path) -> None:
    # It leaves a child that has its output open, too: a busy machine takes its time to start both.
    limit_s = round(scaled_by_load(0.3), 1)
    write_dlcmd(installed, "tail -f /dev/null & exec tail -f /dev/null", LIMIT_S=limit_s)
    assert run_hook(installed, "prolog_slurmctld") < limit_s + scaled_by_load(10)
    assert f"not done within {limit_s:g} s, and ended" in (installed / "log").read_text()
    # A process that is killed runs until it is scheduled.
    eventually(lambda: not processes_with(f"CALLS={installed}/calls"), "both are gone")


@pytest.mark.parametrize("broken", ["no program", "no Python", "no dlcmd", "settings", "log"])
def test_a_broken_installation_fails_no_job(installed: Path, broken: str) -> None:
    if broken == "no program":
        (installed / "dieselfs_slurm.py").unlink()
    elif broken == "no Python":
        (installed / "dieselfs_slurm.py").write_text("#!/no/such/python3\n")
    elif broken == "no dlcmd":
        (installed / "dlcmd").unlink()
    elif broken == "settings":
        (installed / "settings.env").write_bytes(b"\xff\xfe = nonsense\n")
    else:
        write_dlcmd(installed, "exit 1", LOG="/no/such/folder/log")
    for context in ("prolog_slurmctld", "prolog_slurmd", "epilog_slurmd", "epilog_slurmctld"):
        run_hook(installed, context)


def test_a_comment_can_be_checked_before(installed: Path) -> None:
    program = installed / "dieselfs_slurm.py"
    good = subprocess.run([program, "--check", COMMENT], capture_output=True, text=True, check=True)
    assert good.stdout == "dlcmd alloc job add 1 imagenet --speed=114MB/s --passes=90 --gpus=8\n"
    bad = subprocess.run(
        [program, "--check", "dieselfs:x"], capture_output=True, text=True, check=False
    )
    assert (bad.returncode, bad.stdout) == (2, "")
    assert "write dieselfs:dataset=NAME" in bad.stderr


@pytest.mark.parametrize("said", ["exit 3", "echo nonsense", "echo '{}'"])
def test_a_sweep_that_cannot_know_forgets_nothing(installed: Path, said: str) -> None:
    write_dlcmd(installed, f'echo "$@" >>"$CALLS"; {said}')
    program = installed / "dieselfs_slurm.py"
    done = subprocess.run([program, "--sweep"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: ")
    assert (installed / "calls").read_text() == "--quiet --json alloc job ls\n"


def test_a_sweep_without_slurms_answer_forgets_nothing(installed: Path) -> None:
    write_dlcmd(installed, """echo "$@" >>"$CALLS"; echo '{"job": "42"}'""")
    squeue = installed / "squeue"
    squeue.write_text("#!/bin/sh\nexit 1\n")
    squeue.chmod(0o755)
    path = f"{installed}:{os.environ['PATH']}"
    program = installed / "dieselfs_slurm.py"
    done = subprocess.run(
        [program, "--sweep"], env={"PATH": path}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "squeue" in done.stderr
    assert (installed / "calls").read_text() == "--quiet --json alloc job ls\n"


def test_what_is_copied_can_be_run() -> None:
    for name in ("hook", "dieselfs_slurm.py"):
        assert os.access(FOLDER / name, os.X_OK)
