"""scripts/setup.sh in a checkout of its own: what it runs, and what it builds.

The programs that it would start as root, or to install something, are stand-ins that keep a log.
"""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

CHECKOUT = Path(__file__).parents[1]
EXTENSIONS = ("path_lookup", "crash_report", "mapped_file")
PYTHON = f"""#!/bin/sh
case "$*" in *pip*) echo "$*" >>"$LOG" ;; *) exec {sys.executable} "$@" ;; esac
"""


def program(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout that is set up, whose extensions are empty, so that a compiler is done at once."""
    made = tmp_path / "checkout"
    for name in ("scripts/setup.sh", "pyproject.toml", "setup.py", "README.md", "LICENSE"):
        (made / name).parent.mkdir(parents=True, exist_ok=True)
        (made / name).write_bytes((CHECKOUT / name).read_bytes())
    (made / "scripts/setup.sh").chmod(0o755)
    program(made / ".venv/bin/python", PYTHON)
    program(made / "scripts/none.py", "")
    for name in ("fusermount3", "redis-server", "redis-cli", "rsync"):
        program(made / "bin" / name, "#!/bin/sh\n")  # so that no machine lacks any
    sources = made / "metadata/extension"
    sources.mkdir(parents=True)
    for name in EXTENSIONS:
        (sources / f"{name}.c").write_text(f"void *PyInit__{name}(void) {{ return 0; }}\n")
    stamped = f"{made}/.venv\n.stamp\n".encode()
    for name in ("pyproject.toml", "setup.py", "scripts/setup.sh", "scripts/none.py"):
        stamped += (made / name).read_bytes()
    (made / ".venv/.stamp").write_text(f"{sha256(stamped).hexdigest()}  -\n")
    return made


def set_up(checkout: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [checkout / "scripts/setup.sh"],
        env={"PATH": f"{checkout}/bin:{os.environ['PATH']}", "LOG": f"{checkout}/log"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )


def age(path: Path, seconds: float) -> None:
    then = time.time() - seconds
    os.utime(path, (then, then))


def test_an_extension_is_built_again_each_time_its_source_changes(checkout: Path) -> None:
    """One source alone changes, and the others' modules are older than it then."""
    sources = checkout / "metadata/extension"
    for path in (sources, *sources.iterdir()):
        age(path, 300)
    first = set_up(checkout)
    assert first.returncode == 0, first.stderr
    for built in checkout.rglob("*.so"):
        age(built, 200)
    age(sources / "path_lookup.c", 100)
    again = set_up(checkout)
    assert again.returncode == 0, again.stderr
    assert "building the C extensions" in again.stderr
    assert set_up(checkout).stderr == ""


def test_the_environment_gets_a_setuptools_that_knows_our_project_file(checkout: Path) -> None:
    set_up(checkout)
    assert "setuptools>=77" in (checkout / "log").read_text()


@pytest.fixture
def programs() -> Iterator[Path]:
    """A folder, open to all users, with a set-up and the few programs of the machine it needs."""
    with TemporaryDirectory() as folder:
        made = Path(folder)
        made.chmod(0o755)
        shutil.copy(CHECKOUT / "scripts/setup.sh", made / "setup.sh")
        for name in ("bash", "dirname", "realpath"):
            (made / name).symlink_to(str(shutil.which(name)))
        program(made / "apt-get", "#!/bin/sh\n")
        yield made


def as_root(programs: Path) -> subprocess.CompletedProcess[str]:
    """Let an ordinary user install a package; there are no other programs than these."""
    is_root = os.geteuid() == 0
    return subprocess.run(
        [programs / "setup.sh", "--as-root", "munge"],
        env={"PATH": os.fspath(programs)},
        user=65534 if is_root else None,
        extra_groups=() if is_root else None,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_user_installs_packages_by_sudo(programs: Path) -> None:
    program(programs / "sudo", '#!/bin/sh\necho "$@"\n')
    done = as_root(programs)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"{programs}/setup.sh --as-root munge\n"


def test_a_user_without_sudo_reads_what_to_install(programs: Path) -> None:
    done = as_root(programs)
    assert done.returncode == 1
    assert done.stderr == "setup: no root, no sudo; please have installed: munge\n"
