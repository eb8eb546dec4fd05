"""A store that refuses most uploads for some seconds, and then goes on."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from benchmarks.throttling_server import CREDENTIALS, Throttling, throttling_server
from tests.faults.case import Measured, fault_case
from tests.faults.reading import content
from tests.forked_programs import run_forked

THROTTLED_S = 3.0
FILES = 300


@fault_case(
    f"a store that throttles the uploads of `dlcmd put -j 2` tenfold for {THROTTLED_S:g} s: 503 above its rate, ten times the latency",
    promise="the processes back off together and repeat what was refused; the put ends with every file and without an error",
    bound_s=60.0,
    check="chunkstore.stores.retrying:RetryingStore._gives_up=true",
)
def test_throttled_put(measured: Measured, tmp_path: Path) -> None:
    source, back = tmp_path / "source", tmp_path / "back"
    source.mkdir()
    files = {f"f{number:03}": content(f"f{number:03}") for number in range(FILES)}
    for name, data in files.items():
        (source / name).write_bytes(data)
    kept = {key: value for key, value in os.environ.items() if not key.startswith("DIESELFS_")}
    with throttling_server(Throttling(100, 0.005, 0.2, THROTTLED_S, keeps_chunks=True)) as url:
        environment = (
            kept
            | CREDENTIALS
            | {
                "DIESELFS_STORE": url,
                "DIESELFS_INDEX": f"lmdb://{tmp_path}/index",
                "XDG_DATA_HOME": str(tmp_path / "data"),
            }
        )

        def dlcmd(*arguments: str) -> str:
            done = run_forked([sys.executable, "-m", "dieselfs.cli", *arguments], env=environment)
            done.check_returncode()
            return done.stdout

        with measured.felt():
            said = dlcmd("put", "-j", "2", "--chunk-size", "32KiB", f"{source}/", "dl://d")
        dlcmd("get", "-r", "dl://d/", str(back))
    assert f"put {FILES} files" in said
    assert "uploads were repeated" in said
    assert {path.name: path.read_bytes() for path in back.iterdir()} == files
    measured.note("every file, no error")
