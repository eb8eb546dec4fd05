"""Files of a put that are larger than memory should be."""

from __future__ import annotations

import os
import subprocess
import sys

from tests.faults.case import Measured, fault_case
from tests.faults.repeated_put import folder_in_memory

SIZE_BYTES = 1 << 30
LIMIT_BYTES = 700 << 20
PEAK = """
import resource, subprocess, sys
subprocess.run(sys.argv[1:], check=True)
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
"""
"""Prints the KiB of the largest process of a command. A process counts those of its parent before
its exec too, so the parent must be small.
"""


@fault_case(
    "a sparse file of 1 GiB, which is put to a file:// store",
    promise="no process of the put has more than 700 MiB of memory, whatever the file's size",
    bound_s=60,
    check="dieselfs.packing.worker:_is_large=false",
)
def test_a_large_file_goes_out_by_parts(measured: Measured) -> None:
    with folder_in_memory() as folder:
        source = folder / "large"
        source.touch()
        os.truncate(source, SIZE_BYTES)
        environment = {
            **os.environ,
            "DIESELFS_STORE": f"file://{folder}/store",
            "DIESELFS_INDEX": f"lmdb://{folder}/index",
            "XDG_DATA_HOME": str(folder / "data"),
        }
        command = [sys.executable, "-m", "dieselfs.cli", "put", "-q", "-j", "1", str(source)]
        with measured.felt():
            measuring = [sys.executable, "-c", PEAK, *command, "dl://d"]
            peak = subprocess.check_output(measuring, env=environment)
        stored = [path.stat().st_size for path in (folder / "store").rglob("*") if path.is_file()]
    assert max(stored) > SIZE_BYTES
    peak_bytes = int(peak) << 10
    assert peak_bytes < LIMIT_BYTES
    measured.note(f"{peak_bytes >> 20} MiB")
