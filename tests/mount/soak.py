"""Minutes of what the mount's short torture test does in seconds: `python -m tests.mount.soak
[--minutes 5] [--front erofs]`.

Eight processes read in every way and check every byte while chunks are filled ahead and evicted,
the mount takes another snapshot, its server is killed and upgraded, and the kernel forgets names,
inodes and pages; for half of the time reads of the store fail now and then as well. Prints what was
done. Root can add `--drop-caches`, which the whole machine will feel.
"""

import argparse
import json
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.eventually import PATIENCE_S, eventually
from tests.mount import made_up
from tests.mount.mounting import KIND, kind_of_mount, mounted
from tests.mount.torture import MemoryGroup, disturb, tortured
from tests.mount.versions import Versions, pack_versions

CHUNK_BYTES = 256 << 10
CACHE_BYTES = 4 << 20
"""Less than a tenth of a version: something is evicted all the time."""
LEAST_READS = 300
FREE_IN_GROUP_BYTES = [mib << 20 for mib in (32, 28, 24, 20, 16)]
"""For page cache, and for what the daemon fetches at a time: less and less until the group is full.
Much less, and the daemon is killed."""


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
    phases: Sequence[bool] = (False, True),
    count: int = 8,
) -> dict[str, Any]:
    """Torture a mount of its own. What was done and counted; `AssertionError` for anything that
    went wrong.

    In each phase reads of the store may fail, or not; then files are mapped too. In a memory group
    no server is started: it has no room for two.
    """
    done: Counter[str] = Counter()
    with mounted(versions.before, folder, "--cache-bytes", str(CACHE_BYTES)) as mount:
        if group is not None:
            for pid in (mount.pid, *mount.servers()):
                group.add(pid)
        for may_fail in phases:
            place = folder / f"readers{may_fail:d}"
            limit_s = seconds + 2 * PATIENCE_S
            with tortured(mount, files, place, limit_s, may_fail=may_fail, count=count) as readers:
                if group is not None:
                    for process in readers.processes:
                        assert process.pid is not None
                        group.add(process.pid)
                eventually(lambda: min(readers.beats) > 20, "readers that read")
                if group is not None and not may_fail:
                    for free_bytes in FREE_IN_GROUP_BYTES:
                        # All have what they need, then.
                        disturb(mount, versions, 2, whole_machine=False, starts_servers=False)
                        if group.times_full:
                            break
                        group.leave_free(free_bytes)
                done.update(
                    disturb(
                        mount,
                        versions,
                        seconds / len(phases),
                        whole_machine=whole_machine,
                        faults=readers.faults,
                        starts_servers=group is None,
                    )
                )
                eventually(lambda: sum(readers.beats) > LEAST_READS, "reads of all together")
                done["reads"] += sum(readers.beats)
            if may_fail is not phases[-1]:
                mount.refresh(versions.before.snapshot)
        counted = mount.statistics()
        assert "Traceback" not in mount.log, mount.log
    of_last_server = {key: counted[key] for key in ("front", "requests", "cache", "page_cache")}
    return {"done": dict(done), "last_server": of_last_server}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=5)
    parser.add_argument("--files", type=int, default=6000)
    parser.add_argument("--front", choices=["erofs", "erofs-loop", "fuse"], default=kind_of_mount())
    parser.add_argument("--drop-caches", action="store_true")
    parser.add_argument("--memory-group", action="store_true", help="in a tight memory cgroup")
    chosen = parser.parse_args()
    os.environ[KIND] = chosen.front
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
