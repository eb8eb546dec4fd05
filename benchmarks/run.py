"""Runs the benchmarks, one after the other, each in a process of its own; their JSON lines go to
stdout.

    python -m benchmarks.run                 # all, full size
    python -m benchmarks.run --quick         # all, small: that they work, not what they say
    python -m benchmarks.run bench_snapshot  # some
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

QUICK = {
    "bench_adoption": ["--gib", "0.05", "--rounds", "1"],
    "bench_allocation": ["--seconds", "5"],
    "bench_budget": ["--seconds", "2", "--pairs", "100"],
    "bench_kernel_image": ["--quick"],
    "bench_cache_cluster": ["--quick"],
    "bench_cluster_budget": ["--seconds", "5", "--rates", "20MB/s"],
    "bench_client": ["--files", "5000", "--rounds", "1"],
    "bench_file_sizes": ["--quick"],
    "bench_get": ["--files", "500", "--rounds", "1"],
    "bench_hedging": ["--reads", "2000"],
    "bench_object_store": ["--quick"],
    "bench_start": ["--rounds", "1"],
    "bench_lookups": ["--quick"],
    "bench_node_loss": ["--quick"],
    "bench_peer_faults": ["--quick"],
    "bench_peer_fill": ["--quick"],
    "bench_peer_nodes": ["--quick"],
    "bench_peer_scale": ["--quick"],
    "bench_peers": ["--quick"],
    "bench_own_ssd": ["--quick"],
    "bench_plan": [
        *("--files", "40960", "--large-files", "400", "--rounds", "1"),
        *("--share", "0.4", "--group", "2"),
    ],
    "bench_purge": ["--quick"],
    "bench_put": ["--files", "5000", "--rounds", "1"],
    "bench_pack": ["--files", "10000", "--rounds", "1"],
    "bench_memory": ["--files", "1000"],
    "bench_mount": ["--quick"],
    "bench_large_samples": ["--quick"],
    "bench_snapshot": ["--files", "20000"],
    "bench_samples": ["--quick"],
    "bench_scrub": ["--quick"],
    "bench_shuffle": ["--files", "20000"],
    "bench_readers": ["--quick"],
    "bench_recovery": ["--files", "20000", "--rounds", "1"],
    "bench_read_miss": ["--files", "500", "--rounds", "1"],
    "bench_resume": ["--files", "20000", "--rounds", "1"],
    "bench_shuffle_quality": ["--files", "20000", "--rounds", "1"],
    "bench_accuracy": ["--quick"],
    "bench_ssd_policies": ["--quick"],
    "bench_ssd_tier": ["--quick"],
    "bench_survival": ["--quick"],
    "bench_swapped_store": ["--quick"],
    "bench_training": ["--quick"],
    "bench_throttled_put": ["--quick"],
    "bench_versions": ["--quick"],
    "bench_writers": ["--quick"],
    "bench_worker_start": ["--files", "5000", "--rounds", "1"],
}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", help="such as bench_put; all if none is named")
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    found = sorted(path.stem for path in Path(__file__).parent.glob("bench_*.py"))
    unknown = set(options.names) - set(found)
    if unknown:
        parser.error(f"no benchmark {', '.join(sorted(unknown))}; there are {', '.join(found)}")
    failed = 0
    for name in options.names or found:
        print(f"{name}:", file=sys.stderr, flush=True)
        arguments = QUICK.get(name, []) if options.quick else []
        failed |= subprocess.run(
            [sys.executable, "-m", f"benchmarks.{name}", *arguments], check=False
        ).returncode
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
