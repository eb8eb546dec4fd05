"""fusermount3 mounts for an ordinary user and hands the descriptor over; its complaints reach the
user."""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from dieselfs.errors import MountError
from dieselfs.fuse.mounts import fusermount
from tests.mount.test_ordinary_user import NOBODY, ROOT_OF_CHECKOUT, as_nobody

pytestmark = pytest.mark.skipif(shutil.which("fusermount3") is None, reason="needs fusermount3")

SCENARIO = """
import os, stat, subprocess, sys
from pathlib import Path
from dieselfs.errors import MountError
from dieselfs.fuse.mounts import fusermount

home = Path(sys.argv[1])
options = ["fsname=dieselfs:a,b", "subtype=dieselfs", "ro", "default_permissions"]
before = os.listdir("/proc/self/fd")

def complaint(where, *more):
    try:
        fusermount.mount(where, [*options, *more])
    except MountError as error:
        print(error, "|", error.hint)

fd = fusermount.mount(home, options)
assert os.readlink(f"/proc/self/fd/{fd}") == "/dev/fuse"
assert not os.get_inheritable(fd)
[line] = [line for line in open("/proc/self/mountinfo", errors="replace") if f" {home} " in line]
assert " - fuse.dieselfs dieselfs:a,b ro," in line, line
assert {"ro", "nosuid", "nodev"} <= set(line.split()[5].split(",")), line
subprocess.run(["fusermount3", "-u", home], check=True)
os.close(fd)
complaint("/usr")
complaint(home / "absent")
complaint(home, "allow_other")
assert os.listdir("/proc/self/fd") == before
print("passed")
"""


@pytest.fixture
def home() -> Iterator[Path]:
    """A folder of the user's that everyone can reach, which pytest's own are not."""
    with tempfile.TemporaryDirectory(prefix="dieselfs-user-", dir="/tmp") as folder:
        Path(folder).chmod(0o755)
        for name in ("home", "staging"):
            (Path(folder) / name).mkdir()
        if os.geteuid() == 0:
            os.chown(Path(folder) / "home", NOBODY, NOBODY)
        yield Path(folder) / "home"


def test_an_ordinary_user_gets_a_descriptor_or_the_reason(home: Path) -> None:
    command = [sys.executable, "-c", SCENARIO, str(home)]
    if os.geteuid() == 0:
        command = as_nobody(home.parent / "staging", command)
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1", "HOME": str(home)}
    done = subprocess.run(
        command, cwd=ROOT_OF_CHECKOUT, capture_output=True, text=True, env=environment
    )
    assert done.returncode == 0, done.stdout + done.stderr
    not_his, absent, *others, passed = done.stdout.splitlines()
    assert not_his.startswith("cannot mount at /usr: ")
    assert "no write access" in not_his
    assert "belongs to you" in not_his
    assert f"cannot mount at {home}/absent: " in absent
    assert "No such file or directory" in absent
    if "\nuser_allow_other" not in Path("/etc/fuse.conf").read_text():
        assert "user_allow_other" in others[0]
        assert "add the line" in others[0]
    assert passed == "passed"


def test_a_missing_program_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(MountError, match="fusermount3 is not installed") as raised:
        fusermount.mount(tmp_path, ["ro"])
    assert "install fuse3`" in str(raised.value.hint)


def test_a_program_that_sends_nothing_is_a_failure(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    program = tmp_path / "fusermount3"
    program.write_text("#!/bin/sh\nexit 3\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with pytest.raises(MountError, match="failed with exit status 3"):
        fusermount.mount(tmp_path, ["ro"])
