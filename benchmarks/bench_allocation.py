"""Do the readers of a job on several nodes keep to its share, whatever happens to the allocator
and the Redis, and what does it cost the Redis?

`share`: how much of its remote IO a job of three nodes uses (`allocation_share`).
`faults`: who depends on the allocator and the Redis (`allocation_faults`).
`obey`: how soon another rate, another job and another quota are obeyed (`allocation_obeyed`).
`beat`: what a reader's beat costs the Redis (`allocation_beats`).

Each module states its expectation.

    python -m benchmarks.bench_allocation [--only share|faults|obey|beat] [--seconds 60]
"""

from __future__ import annotations

import argparse
import itertools

from benchmarks.allocation_beats import READERS, beat
from benchmarks.allocation_faults import faults
from benchmarks.allocation_obeyed import obey_jobs, obey_quota, obey_rates
from benchmarks.allocation_share import share


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", choices=("share", "faults", "obey", "beat"), help="one question")
    parser.add_argument("--seconds", type=float, default=60.0, help="of each measurement")
    options = parser.parse_args()
    if options.only in (None, "share"):
        for in_step, equally in itertools.product((True, False), (True, False)):
            share(options.seconds, equally=equally, in_step=in_step)
        share(options.seconds, equally=False, in_step=True, threads=4)
    if options.only in (None, "faults"):
        for case in ("allocator", "Redis", "both"):
            faults(case, options.seconds)
    if options.only in (None, "obey"):
        obey_rates(options.seconds)
        obey_jobs(options.seconds)
        obey_quota()
    if options.only in (None, "beat"):
        for readers in READERS:
            beat(readers)


if __name__ == "__main__":
    main()
