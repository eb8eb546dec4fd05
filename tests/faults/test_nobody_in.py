"""Nobody gets in, and nothing gets out: secrets, folders, sockets, other users, names that lead
elsewhere."""

from __future__ import annotations

import dataclasses
import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from chunkstore.chunk_format import decode_head
from chunkstore.errors import Corrupt
from dieselfs.client.extraction.local_folder import LocalFolder
from dieselfs.errors import LocalFileError
from dieselfs.fuse.supervision.daemonize import default_log_file
from metadata.errors import SnapshotRefused
from metadata.snapshot import Snapshot
from metadata.snapshot_builder import build_snapshot
from tests.chunkstore.chunk_by_hand import ChunkByHand, Row
from tests.conftest import MARK, processes_with
from tests.eventually import PATIENCE_S
from tests.faults.case import Measured, fault_case
from tests.forked_programs import run_forked
from tests.metadata.snapshot_trees import DATASET, File, Tree
from tests.services.redis_processes import RedisProcess

CARELESS_DLCMD = """
import os, resource
from dieselfs.cli import main

os.umask(0)
resource.setrlimit(resource.RLIMIT_CORE, (1 << 30, 1 << 30))
main()
"""
"""`dlcmd` of a user who has set the worst."""
SECRET = "quite-a-secret-7d1f"
NOBODY = 65534


def dlcmd(*arguments: object, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", CARELESS_DLCMD, *map(str, arguments)]
    if arguments[0] == "mount":  # its daemon inherits these settings
        return subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=PATIENCE_S
        )
    return run_forked(command, env=environment, timeout=PATIENCE_S)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "source"
    for number in range(20):
        path = folder / f"class{number % 3}" / f"{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"%d" % number * 1000)
    return folder


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """Of a user with nothing but a home."""
    needed = ("PATH", "PYTHONPATH", "DIESELFS_TAKEN_OUT", MARK)
    kept = {key: os.environ[key] for key in needed if key in os.environ}
    for own in ("DIESELFS_MEMORY_FOLDER", "DIESELFS_LOG_FOLDER"):
        kept[own] = os.environ[own]
    (tmp_path / "home").mkdir(mode=0o755)
    return kept | {"HOME": str(tmp_path / "home"), "PYTHONUNBUFFERED": "1"}


@pytest.fixture
def locked_redis(tmp_path: Path) -> Iterator[RedisProcess]:
    with RedisProcess(tmp_path / "redis") as server:
        with server.client() as client:
            client.config_set("requirepass", SECRET)
        yield server


def our_processes() -> list[int]:
    found = processes_with(f"{MARK}={os.environ[MARK]}")
    return [int(entry.removeprefix("process ").partition(":")[0]) for entry in found]


def command_of(pid: int) -> bytes:
    """The command line; nothing of a process that has ended, as a helper of another test may."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def everything_below(folder: Path) -> list[Path]:
    """`Path.rglob` fails where a folder goes meanwhile, such as that of another test's task."""
    return [Path(at, name) for at, folders, files in os.walk(folder) for name in (*folders, *files)]


@pytest.fixture
def mountpoint(tmp_path: Path, environment: dict[str, str]) -> Iterator[Path]:
    path = tmp_path / "mnt"
    path.mkdir()
    yield path
    if os.path.ismount(path):
        done = dlcmd("umount", path, environment=environment)
        assert done.returncode == 0, done.stderr


@fault_case(
    "umask 0, everything with its defaults: put, mount, read",
    promise="folders with indexes, snapshots, sockets and cached chunks are 0700, their files their owner's",
    bound_s=60,
    check="dieselfs.assembly:_make_private=none",
)
def test_folders_are_private(
    source: Path,
    environment: dict[str, str],
    mountpoint: Path,
    tmp_path: Path,
    measured: Measured,
) -> None:
    with measured.felt():
        assert dlcmd("put", f"{source}/", "pets", environment=environment).returncode == 0
        done = dlcmd("mount", "pets", mountpoint, "--task", "private-task", environment=environment)
        assert done.returncode == 0, done.stderr
    (mountpoint / "class0" / "0.jpg").read_bytes()
    home = tmp_path / "home"
    top = [path for path in home.rglob("*") if path.name == "dieselfs"]
    assert top
    reached = 0
    memory = everything_below(Path(environment["DIESELFS_MEMORY_FOLDER"]))
    tasks = [path for path in memory if path.name.startswith("private-task")]
    assert tasks
    for folder in [*top, *tasks]:
        for path in [folder, *everything_below(folder)]:
            try:
                found = path.lstat()
            except FileNotFoundError:  # a temporary file of the mount
                continue
            if open_to_others(path, home, found):
                pytest.fail(f"{path} has mode {stat.filemode(found.st_mode)}")
            reached += 1
    assert reached > 10
    measured.note(f"{reached} files and folders")


def open_to_others(path: Path, home: Path, found: os.stat_result) -> bool:
    """Whether another user can reach it: its own bits, and those of every folder above it."""
    if not found.st_mode & (0o005 if stat.S_ISDIR(found.st_mode) else 0o006):
        return False
    above = path.parent
    while above not in (home, home.parent, Path("/dev/shm"), Path("/")):
        if not above.stat().st_mode & 0o001:
            return False
        above = above.parent
    return True


@fault_case(
    "a Redis with a password, named in the environment; the mount is looked at from all sides",
    promise="the password is in no argument, log, document or core file",
    bound_s=60,
    check="dieselfs.cache.ports.core_dumps:prevent_core_dumps=none",
)
def test_no_secret_is_seen(
    source: Path,
    environment: dict[str, str],
    mountpoint: Path,
    locked_redis: RedisProcess,
    tmp_path: Path,
    measured: Measured,
) -> None:
    environment["DIESELFS_INDEX"] = f"redis://:{SECRET}@127.0.0.1:{locked_redis.port}/0"
    said = ""
    with measured.felt():
        for command in (
            ["put", f"{source}/", "pets"],
            ["mount", "pets", mountpoint],
            ["dataset", "info", "pets", "--debug"],
            ["stats", mountpoint],
        ):
            done = dlcmd(*command, environment=environment)
            assert done.returncode == 0, done.stderr
            said += done.stdout + done.stderr
    said += (mountpoint / ".dieselfs/dataset.json").read_text()
    said += (mountpoint / ".dieselfs/stats.json").read_text()
    log = default_log_file(mountpoint).read_text()
    assert f"{mountpoint} is mounted" in log
    said += log
    daemons = [
        pid
        for pid in our_processes()
        if b"dieselfs" in (command := command_of(pid)) and str(mountpoint).encode() in command
    ]
    assert daemons
    for pid in daemons:
        said += Path(f"/proc/{pid}/cmdline").read_text()
    assert SECRET not in said

    # An index that does not answer is complained of without the password.
    locked_redis.stop()
    done = dlcmd("ls", "pets", environment=environment)
    assert (done.returncode, SECRET in done.stderr) == (5, False)
    assert "127.0.0.1" in done.stderr
    locked_redis.start()

    for pid in daemons:
        limits = Path(f"/proc/{pid}/limits").read_text()
        assert limits.split("Max core file size")[1].split()[0] == "0"
    asked = "import ctypes, dieselfs.cache.ports.core_dumps as c; c.prevent_core_dumps(); print(ctypes.CDLL(None).prctl(3, 0, 0, 0, 0))"
    done = subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "0"
    measured.note(f"{len(daemons)} processes looked at")


@fault_case(
    "another user lists and reads a mount; then one with --allow-other",
    promise="EACCES for everybody but its owner, unless --allow-other was given",
    bound_s=60,
    why="the kernel's own check, which --allow-other turns off",
)
def test_a_mount_belongs_to_its_user(
    source: Path, environment: dict[str, str], mountpoint: Path, tmp_path: Path, measured: Measured
) -> None:
    assert dlcmd("put", f"{source}/", "pets", environment=environment).returncode == 0
    for options, expected in (([], 1), (["--allow-other"], 0)):
        with measured.felt():
            done = dlcmd("mount", "pets", mountpoint, *options, environment=environment)
        assert done.returncode == 0, done.stderr
        assert as_nobody_through(mountpoint) == expected
        assert dlcmd("umount", mountpoint, environment=environment).returncode == 0
    measured.note("EACCES; with --allow-other the file")


def as_nobody_through(mountpoint: Path) -> int:
    """0 if user nobody can read in the mount, 1 for EACCES; he starts inside of it."""
    code = f"""
import os
os.chdir({str(mountpoint)!r})
os.setgroups([]); os.setgid({NOBODY}); os.setuid({NOBODY})
try:
    os.listdir(".")
    content = open("class0/0.jpg", "rb").read()
except PermissionError:
    raise SystemExit(1)
raise SystemExit(0 if len(content) == 1000 else 3)
"""
    return subprocess.run([sys.executable, "-c", code], timeout=60).returncode


@fault_case(
    "every socket that a mount, its helpers and a client with node memory hold",
    promise="nothing listens but Unix sockets in folders of the user",
    bound_s=60,
    why="there is no other listener in the code; the case looks at the kernel's tables",
)
def test_nothing_listens_to_the_world(
    source: Path, environment: dict[str, str], mountpoint: Path, tmp_path: Path, measured: Measured
) -> None:
    assert dlcmd("put", f"{source}/", "pets", environment=environment).returncode == 0
    with measured.felt():
        assert dlcmd("mount", "pets", mountpoint, environment=environment).returncode == 0
    (mountpoint / "class0/0.jpg").read_bytes()
    listening = {
        fields[9]
        for table in ("tcp", "tcp6", "udp", "udp6")
        for fields in map(str.split, Path(f"/proc/net/{table}").read_text().splitlines()[1:])
        if fields[3] in ("0A", "07")
    }
    sockets = 0
    for pid in our_processes():
        if str(mountpoint).encode() not in command_of(pid):
            continue
        for descriptor in Path(f"/proc/{pid}/fd").iterdir():
            try:
                target = os.readlink(descriptor)
            except FileNotFoundError:
                continue
            if target.startswith("socket:["):
                sockets += 1
                assert target[8:-1] not in listening
    assert sockets
    measured.note(f"{sockets} sockets, none of them reachable")


def write_hostile_snapshot(folder: Path, monkeypatch: pytest.MonkeyPatch, name: bytes) -> Path:
    """A snapshot whose file is called `name`, sealed with right hashes by somebody who leaves out
    the checks."""
    tree = Tree({b"x": File(1, 0, 0, 4, 7)})
    [listing] = tree.listings()
    monkeypatch.setattr("metadata.snapshot_builder.check_names", lambda names: None)

    listing = dataclasses.replace(listing, file_names=[name])
    return build_snapshot(DATASET, tree.state, None, [listing], tree.chunks, folder)


def write_into(folder: LocalFolder, name: str) -> None:
    with folder.directory("") as directory:
        directory.write_file(name, 0o644, 0, [b"evil"])


@pytest.mark.parametrize("name", [b"..", b".", b"../../evil", b"a/../../evil", b"/etc/evil"])
@fault_case(
    "a snapshot and a chunk with the names `..`, `../../evil`, `/etc/evil`, sealed with right hashes",
    promise="refused where they enter; `dlcmd get` writes below its target only, even from a snapshot that nobody verified",
    bound_s=30,
    check="dieselfs.client.extraction.local_folder:_components=first",
)
def test_names_that_lead_elsewhere(
    name: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, measured: Measured
) -> None:
    path = write_hostile_snapshot(tmp_path / "snapshots", monkeypatch, name)
    monkeypatch.undo()
    with pytest.raises(SnapshotRefused):
        Snapshot.verify(path)
    with pytest.raises(Corrupt):
        decode_head(ChunkByHand([Row(name)]).head())
    target = tmp_path / "deep" / "er" / "target"
    target.mkdir(parents=True)
    before = sorted(tmp_path.rglob("*"))
    folder = LocalFolder(target)
    told = os.fsdecode(name)
    with measured.felt():
        for escape in (
            lambda: write_into(folder, told),
            lambda: folder.make_directory(told),
            lambda: folder.restore_directory(told, 0o755, 0),
        ):
            with pytest.raises(LocalFileError, match="outside"):
                escape()
    folder.close()
    assert sorted(tmp_path.rglob("*")) == before
    measured.note("refused")
