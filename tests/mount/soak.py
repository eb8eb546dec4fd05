"""Minutes of what the mount's short test of storing ahead does in seconds: `python -m tests.mount.soak [--minutes 5]`.

Eight processes read at random and check every byte while chunks are stored ahead and evicted, the mount takes another snapshot, and
the kernel forgets names, inodes and pages. Prints what was done. Root can add `--drop-caches`, which the whole machine will feel.
"""

import argparse
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.mount import made_up
from tests.mount.mounting import eventually, mounted
from tests.mount.torture import MemoryGroup, disturb, tortured
from tests.mount.versions import Versions, pack_versions

CHUNK_BYTES = 256 << 10
CACHE_BYTES = 4 << 20
"""Less than a tenth of a version: something is evicted all the time."""
FREE_IN_GROUP_BYTES = [mib << 20 for mib in (32, 28, 24, 20, 16)]
"""For page cache, and for what the daemon fetches at a time: less and less until the group is full. Much less, and the daemon is killed."""


def pack_made_up(files: int, folder: Path) -> Versions:
    paths = made_up.all_paths(files)
    first, second = (made_up.files_of(version, paths) for version in made_up.VERSIONS)
    return pack_versions(first, second, folder, CHUNK_BYTES)


def soak(
    versions: Versions,
    files: int,
    folder: Path,
    seconds: float,
    *,
    whole_machine: bool = False,
    group: MemoryGroup | None = None,
) -> dict[str, Any]:
    """Torture a mount of its own. What was done and counted; `AssertionError` for anything that went wrong."""
    with mounted(versions.before, folder, "--cache-bytes", str(CACHE_BYTES)) as mount:
        if group is not None:
            group.add(mount.pid)
        with tortured(mount, files, folder / "readers", seconds + 100) as readers:
            if group is not None:
                for process in readers.processes:
                    assert process.pid is not None
                    group.add(process.pid)
            eventually(lambda: min(readers.beats) > 50, "readers that read")
            if group is not None:
                for free_bytes in FREE_IN_GROUP_BYTES:
                    disturb(
                        mount, versions, 2, whole_machine=False
                    )  # all have what they need, then
                    if group.times_full:
                        break
                    group.leave_free(free_bytes)
            done = disturb(mount, versions, seconds, whole_machine=whole_machine)
            done["reads"] = sum(readers.beats)
        counted = mount.statistics()
        assert "Traceback" not in mount.log, mount.log
    return {"done": done, **{key: counted[key] for key in ("requests", "cache", "stored_ahead")}}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=5)
    parser.add_argument("--files", type=int, default=6000)
    parser.add_argument("--drop-caches", action="store_true")
    parser.add_argument("--memory-group", action="store_true", help="in a tight memory cgroup")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="dieselfs-soak-") as folder:
        versions = pack_made_up(chosen.files, Path(folder))
        seconds, place = chosen.minutes * 60, Path(folder, "mount")
        place.mkdir()
        if chosen.memory_group:
            with MemoryGroup() as group:
                found = soak(
                    versions,
                    chosen.files,
                    place,
                    seconds,
                    whole_machine=chosen.drop_caches,
                    group=group,
                )
                found["times_full"] = group.times_full
        else:
            found = soak(versions, chosen.files, place, seconds, whole_machine=chosen.drop_caches)
    print(json.dumps(found, indent=2))
    return os.EX_OK


if __name__ == "__main__":
    sys.exit(main())
