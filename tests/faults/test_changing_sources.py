"""Sources of a put that another program rewrites meanwhile."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from subprocess import CompletedProcess

from tests.faults.case import Measured, fault_case
from tests.faults.source_writer import rewritten
from tests.forked_programs import run_forked

CHANGING, AT_REST = 3, 20
SIZE_BYTES = 40 << 20


@fault_case(
    "a program rewrites the files of a put in place while it reads them; their size stays",
    promise="a file is put as it was at one moment, or named and left out with the exit code 6; all others are put",
    bound_s=60,
    check="dieselfs.packing.worker:check_unchanged=none",
)
def test_rewritten_sources(measured: Measured, tmp_path: Path) -> None:
    source, back = tmp_path / "source", tmp_path / "back"
    source.mkdir()
    changing = [source / f"changing{number}" for number in range(CHANGING)]
    for path in changing:
        path.write_bytes(bytes(SIZE_BYTES))
    for number in range(AT_REST):
        (source / f"rest{number}").write_bytes(os.urandom(1000))
    environment = {
        **os.environ,
        "DIESELFS_STORE": f"file://{tmp_path}/store",
        "DIESELFS_INDEX": f"lmdb://{tmp_path}/index",
        "XDG_DATA_HOME": str(tmp_path / "data"),
    }

    def dlcmd(*arguments: str) -> CompletedProcess[str]:
        return run_forked([sys.executable, "-m", "dieselfs.cli", *arguments], env=environment)

    with rewritten(changing, tmp_path), measured.felt():
        put = dlcmd("put", "-j", "2", f"{source}/", "dl://d")
    dlcmd("get", "-r", "dl://d/", str(back)).check_returncode()
    found = {path.name: path.read_bytes() for path in back.iterdir()}
    torn = [name for name, data in found.items() if name[:4] == "chan" and len(set(data)) > 1]
    assert torn == []
    left_out = {path.name for path in changing} - found.keys()
    assert put.returncode == (6 if left_out else 0), put.stderr
    assert all(f"{source}/{name} changed each of the 3 times" in put.stderr for name in left_out)
    assert found.keys() >= {f"rest{number}" for number in range(AT_REST)}
    measured.note(f"{len(left_out)} of {CHANGING} left out, none torn")
