"""`dlcmd run` over a mount: `python -m tests.mount.as_user_of_run SNAPSHOT STORE FOLDER`.

Run by test_run as root and as an ordinary user; FOLDER belongs to the user. Prints what was passed.
"""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

from dieselfs.fuse.mounts.mount_table import entry_at, mount_entries
from tests.mount.mounting import Mount, mounted
from tests.mount.packing import PackedDataset, random_bytes

READER = """
import json, os, sys
from pathlib import Path
top = Path(sys.argv[1])
files = {str(p.relative_to(top)): p.read_bytes().hex() for p in top.rglob("*") if p.is_file()}
documents = [json.loads((top / ".dieselfs" / "stats.json").read_text()) for _ in range(3)]
ids = [os.getuid(), os.geteuid(), os.getgid(), os.stat(top / "large").st_uid]
listed = os.listdir(top)
print(json.dumps({"files": files, "documents": len(documents), "ids": ids, "listed": listed}))
"""


def dlcmd_run(mount: Mount) -> list[str]:
    """The command for this mount alone: there may be those of other tests."""
    return [sys.executable, "-m", "dieselfs.cli", "run", "--mount", str(mount.path)]


def run(mount: Mount, *command: str, **options: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*dlcmd_run(mount), *command],
        capture_output=True,
        text=True,
        timeout=60,
        **options,  # type: ignore[call-overload]
    )


def reads_every_byte_without_ioctl(mount: Mount) -> None:
    before = mount.statistics()["requests"].get("ioctl", 0)
    done = run(mount, "-v", "--", sys.executable, "-c", READER, str(mount.path))
    assert done.returncode == 0, done.stderr
    assert f"overlays over {mount.path}" in done.stderr
    found = json.loads(done.stdout)
    expected = {f"d{n % 5}/{n}": random_bytes(2000 + n).hex() for n in range(100)}
    assert found["files"] == {**expected, "large": random_bytes(3_000_000).hex()}
    assert found["documents"] == 3
    assert found["ids"] == [os.getuid(), os.geteuid(), os.getgid(), os.getuid()]
    assert sorted(found["listed"]) == ["d0", "d1", "d2", "d3", "d4", "large"]
    # What asks here are the few opens of the control files, by the two statistics().
    assert mount.statistics()["requests"].get("ioctl", 0) - before < 20


def leaves_the_mount_alone(mount: Mount) -> None:
    assert run(mount, "true").returncode == 0
    assert not [entry for entry in mount_entries() if entry.source == "dieselfs-run"]
    entry = entry_at(mount.path)
    assert entry is not None
    assert entry.is_dieselfs


def passes_exit_codes_and_signals(mount: Mount) -> None:
    assert run(mount, "sh", "-c", "exit 7").returncode == 7
    assert run(mount, "sh", "-c", "kill -TERM $$").returncode == -signal.SIGTERM
    # As with env(1), it is 126 where a folder of PATH may not be searched, as root's may not here.
    searched = {**os.environ, "PATH": "/usr/bin:/bin"}
    missing = run(mount, "no-such-command", env=searched)
    assert missing.returncode == 127
    assert "no-such-command" in missing.stderr
    assert run(mount, str(mount.path / "large")).returncode == 126


def hands_on_environment_and_signals(mount: Mount) -> None:
    program = "import os, signal; print(os.environ.get('OPENBLAS_NUM_THREADS'))"
    given = {name: os.environ[name] for name in os.environ if name != "OPENBLAS_NUM_THREADS"}
    assert run(mount, "python3", "-c", program, env=given).stdout == "None\n"
    done = run(mount, "python3", "-c", program, env={**given, "OPENBLAS_NUM_THREADS": "7"})
    assert (done.stdout, done.stderr) == ("7\n", "")
    ignored = run(mount, "grep", "SigIgn", "/proc/self/status").stdout
    assert int(ignored.split()[1], 16) & (1 << signal.SIGPIPE - 1) == 0


def runs_within_a_run(mount: Mount) -> None:
    inner = [*dlcmd_run(mount), "-v", "--", "cat", str(mount.path / "large")]
    command = [*dlcmd_run(mount), "--", *inner]
    done = subprocess.run(command, capture_output=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, random_bytes(3_000_000)), done.stderr


def main() -> None:
    snapshot, store, folder = (Path(argument) for argument in sys.argv[1:])
    packed = PackedDataset(snapshot, store, Path("/nowhere"))
    with mounted(packed, folder, "--front", "fuse") as mount:
        for scenario in (
            reads_every_byte_without_ioctl,
            leaves_the_mount_alone,
            passes_exit_codes_and_signals,
            hands_on_environment_and_signals,
            runs_within_a_run,
        ):
            scenario(mount)
            print("passed", scenario.__name__)


if __name__ == "__main__":
    main()
