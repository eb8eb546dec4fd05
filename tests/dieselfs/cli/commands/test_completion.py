"""completion: what a shell is told, that it is told soon, and that nothing is made or printed."""

import os
import re
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import click
import pytest
from click.shell_completion import FishComplete, ShellComplete

from dieselfs.cli import dlcmd as root
from dieselfs.cli.rendering.completion_scripts import Bash, Zsh
from dieselfs.cli.values import known_names
from dieselfs.cli.values.completed import Completed
from dieselfs.config import load_config
from tests.dieselfs.cli.conftest import Dlcmd
from tests.dieselfs.cli.test_frame import every_verb
from tests.eventually import PATIENCE_S, eventually, scaled_by_load

CHECKOUT = Path(__file__).parents[4]
FREE_TEXT = {
    "cluster cache_cluster",
    "cache policy name",
    "cache quota size",
    "cache ttl duration",
    "cache resize size",
}
FREE_TEXT |= {"config set value", "alloc set-cache size", "alloc set-io rate"}
Complete = Callable[[str], list[str]]


@pytest.fixture(autouse=True)
def patience_with_local_places(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread that looks up names in memory may stand still."""
    monkeypatch.setattr(known_names, "LOCAL_S", PATIENCE_S)


@pytest.fixture
def complete(url: str, monkeypatch: pytest.MonkeyPatch) -> Complete:
    """What zsh is told for a line, without files and folders."""

    def names(line: str) -> list[str]:
        words = line.split(" ")
        monkeypatch.setenv("COMP_WORDS", line)
        monkeypatch.setenv("COMP_CWORD", str(len(words) - 1))
        said = Zsh(root, {}, "dlcmd", "_DLCMD_COMPLETE").complete().split("\n")
        return [
            value for kind, value in zip(said[::3], said[1::3], strict=False) if kind == "plain"
        ]

    return names


@pytest.mark.usefixtures("pets")
def test_datasets_paths_and_snapshots(
    complete: Complete, dlcmd: Dlcmd, monkeypatch: pytest.MonkeyPatch
) -> None:
    [made] = dlcmd("snapshot", "create", "pets", "--json").records
    assert dlcmd("snapshot", "tag", "pets", "v1").code == 0
    short = made["id"][: made["id"].index("-") + 9]
    for line, names in {
        "dlcmd ls ": ["pets", "pets:"],
        "dlcmd stats": ["stats"],
        "dlcmd ls x": [],
        "dlcmd cat pets:": ["pets:cat/", "pets:dog/", "pets:odd/", "pets:readme.txt"],
        "dlcmd cat pets:cat/1": ["pets:cat/1.jpg"],
        "dlcmd cat pets:odd/": [],  # its name would command the terminal
        "dlcmd rm pets:readme.txt pets:dog/b": ["pets:dog/big/"],
        "dlcmd get dl://pets/do": ["dl://pets/dog/"],
        "dlcmd ls dl://p": ["dl://pets", "dl://pets/"],
        "dlcmd mount pets@": [f"pets@{short}", "pets@v1"],
        "dlcmd ls pets@v1:cat/": ["pets@v1:cat/1.jpg", "pets@v1:cat/2.jpg"],
        f"dlcmd ls pets@{short}:r": [f"pets@{short}:readme.txt"],
        "dlcmd snapshot untag pets ": ["v1"],
        "dlcmd warmup pets --since ": [short, "v1"],
        "dlcmd dataset rm ": ["pets"],
        "dlcmd purge p": ["pets"],
        "dlcmd completion ": ["bash", "zsh", "fish"],
    }.items():
        assert complete(line) == names, line
    monkeypatch.setenv("DIESELFS_INDEX", "redis://127.0.0.1:1")
    assert complete("dlcmd cat pets:cat/1") == ["pets:cat/1.jpg"], "of the local snapshot"


def test_tasks_profiles_and_mountpoints(
    complete: Complete, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DIESELFS_MEMORY_FOLDER", str(tmp_path))
    assert complete("dlcmd task show ") == []
    (tmp_path / f"dieselfs-{os.geteuid()}/run1").mkdir(parents=True)
    assert complete("dlcmd task show ") == complete("dlcmd mount x y --task r") == ["run1"]
    (tmp_path / "config/dieselfs").mkdir(parents=True)
    (tmp_path / "config/dieselfs/config.toml").write_text("[profiles.cluster]\n[profiles.one]\n")
    assert complete("dlcmd --profile c") == complete("dlcmd ls --profile c") == ["cluster"]
    monkeypatch.setattr(known_names, "mountpoints", lambda: ["/mnt/a", "/srv/b"])
    assert complete("dlcmd umount /m") == ["/mnt/a"]
    monkeypatch.chdir("/")
    assert complete("dlcmd umount m") == ["mnt/a"]


def test_jobs(
    complete: Complete, dlcmd: Dlcmd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DIESELFS_MEMORY_FOLDER", str(tmp_path))
    assert complete("dlcmd alloc set-io ") == []
    assert dlcmd("alloc", "set-io", "resnet", "1MB/s").code == 0
    declared = ("alloc", "job", "add", "bert", "web", "--size", "1TB", "--speed", "1MB/s")
    assert dlcmd(*declared).code == 0
    for line in ("alloc set-io ", "alloc show ", "alloc job rm ", "mount x y --job "):
        assert complete(f"dlcmd {line}") == ["bert", "resnet"]
    assert complete("dlcmd alloc show r") == ["resnet"]


def test_every_argument_is_completed_or_free_text() -> None:
    lacking = {
        f"{name} {parameter.name}"
        for name, command in every_verb()
        for parameter in command.params
        if isinstance(parameter, click.Argument)
        and not isinstance(parameter.type, Completed | click.Choice | click.Path)
    }
    assert lacking == FREE_TEXT


@pytest.mark.parametrize("kind", [Bash, Zsh, FishComplete])
@pytest.mark.parametrize(
    ("line", "said"),
    [("dlcmd put ", {"file"}), ("dlcmd put a p", {"file", "plain"}), ("dlcmd ls --ssd ", {"dir"})],
)
@pytest.mark.usefixtures("pets")
def test_files_and_folders_are_left_to_the_shell(
    monkeypatch: pytest.MonkeyPatch, kind: type[ShellComplete], line: str, said: set[str]
) -> None:
    last = line.rpartition(" ")[2]
    position = last if kind is FishComplete else str(line.count(" "))
    for name, value in {
        "COMP_LINE": line,
        "COMP_WORDS": line,
        "COMP_CWORD": position,
        "COMP_WORDBREAKS": " :",
    }.items():
        monkeypatch.setenv(name, value)
    lines = kind(root, {}, "dlcmd", "_DLCMD_COMPLETE").complete().split("\n")
    words = {re.split("[,\t]", line)[0] for line in lines}
    assert words & {"plain", "file", "dir"} == said


def test_what_fails_or_is_late_gives_no_names(monkeypatch: pytest.MonkeyPatch) -> None:
    never, givers, looks = threading.Event(), list[threading.Thread](), [0]

    def fail() -> list[str]:
        raise RuntimeError

    def hang() -> list[str]:
        never.wait()
        return ["late"]

    def give() -> list[str]:
        givers.append(threading.current_thread())
        return ["a"]

    def clock() -> float:
        """Stand still until the names are given, and for some looks at what has come."""
        looks[0] += bool(givers) and not givers[0].is_alive()
        return 0.0 if looks[0] <= 5 else known_names.NETWORK_S

    remote = "redis://example"
    began = time.monotonic()
    assert known_names._asked((remote, fail), (remote, hang)) == []
    assert time.monotonic() - began < scaled_by_load(5 * known_names.NETWORK_S)
    monkeypatch.setattr(known_names, "_idle_s", clock)
    assert known_names._asked((remote, fail), (remote, hang), (remote, give)) == ["a"]
    never.set()


def test_a_store_that_hangs_holds_up_no_prompt(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setenv("DIESELFS_INDEX", f"redis://127.0.0.1:{silent.getsockname()[1]}")
        began = time.monotonic()
        assert known_names.dataset_names(load_config()) == []
        assert time.monotonic() - began < scaled_by_load(1.9)  # Redis is waited for longer


needs_bash = pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
ASK = """
source "$SCRIPT"
compopt() { echo "compopt $*"; }
COMP_LINE="$LINE" COMP_POINT=${#LINE} COMP_WORDS=(dlcmd "${LINE##*[ :@=]}") COMP_CWORD=1
_dlcmd_completion dlcmd
printf '%s\\n' "${COMPREPLY[@]}"
"""


@pytest.fixture
def bash(tmp_path: Path, dlcmd: Dlcmd) -> Callable[[str], list[str]]:
    """What bash would offer for a line, by the function of the script."""
    script, program = tmp_path / "script", tmp_path / "bin/dlcmd"
    script.write_bytes(dlcmd("completion", "bash").out)
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -P -m dieselfs "$@"\n')
    program.chmod(0o755)
    path = f"{program.parent}:{os.environ['PATH']}"
    places = {"PATH": path, "PYTHONPATH": str(CHECKOUT), "SCRIPT": str(script)}

    def ask(line: str) -> list[str]:
        done = subprocess.run(
            ["bash", "--norc", "-c", ASK],
            env={**os.environ, **places, "LINE": line},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=True,
        )
        assert "complete -" in script.read_text()
        return sorted(filter(None, done.stdout.split("\n")))

    return ask


@needs_bash
def test_bash(bash: Callable[[str], list[str]], dataset: Path, dlcmd: Dlcmd) -> None:
    spaced = dataset / "a b"
    spaced.mkdir()
    (spaced / "c d").write_bytes(b"")
    (dataset.parent / "pear").mkdir()
    assert dlcmd("put", f"{dataset}/", "pets", "-j", "1").code == 0
    for line, offered in {
        "dlcmd snap": ["snapshot"],
        "dlcmd ls ": ["pets", "pets:"],
        # bash takes pets and : for words of their own, and replaces what follows
        "dlcmd ls pets:c": ["cat/", "compopt -o nospace"],
        "dlcmd ls pets:a\\ b/": ["a\\ b/c\\ d"],
        "dlcmd ls 'pets:a b/": ["pets:a b/c d"],
        "dlcmd put ": ["compopt -o default"],
        "dlcmd put source s": ["compopt -o default"],
        "dlcmd put source p": ["compopt -o filenames", "pear", "pets", "pets:"],
        "dlcmd warmup pets --ssd ": ["compopt -o dirnames"],
    }.items():
        # On a busy machine the answer may come too late for the shell, which offers nothing then.
        eventually(lambda line=line, offered=offered: bash(line) == offered, line)


@needs_bash
def test_nothing_is_made_or_printed(
    bash: Callable[[str], list[str]],
    tmp_path: Path,
    url: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("DIESELFS_STORE")
    monkeypatch.delenv("DIESELFS_INDEX")
    for line in ("dlcmd ls ", "dlcmd cat pets:", "dlcmd ls --profile none pets@"):
        assert bash(line) == []
    assert not (tmp_path / "data").exists()
