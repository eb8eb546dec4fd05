"""Two costs: of a recorded request for its reader, and of a replay of a trace by `dlcmd advise`.

- recorder: a request of a policy runner without a policy, with and without a recorder; the time of
  the reader's thread, and that of the recorder's thread which encodes and writes;
- replay: requests a second of each policy, and of the optimum, for one job that reads a dataset in
  a new random order in each epoch, with half of it on the SSD.

Expectation: the reader makes an event and appends it to a list, 2 µs; encoding takes 1 µs,
and a replay 3 µs a request.

    python -m benchmarks.bench_advice [--requests 100000]
"""

from __future__ import annotations

import argparse
import random
import time
from pathlib import Path

import numpy as np

from benchmarks.harness import report, scratch
from chunkstore.ssd.admission import AdmitAll
from chunkstore.ssd.policies.segment_buckets import Bucket
from chunkstore.ssd.policy_choice import PolicyChoice
from chunkstore.ssd.policy_runner import PolicyRunner
from chunkstore.ssd.reader_tags import ChunkRead, OneBucket, ReaderTags
from dieselfs.cache.advice.optimum import optimum
from dieselfs.cache.advice.recorder import Recorder, TraceSettings
from dieselfs.cache.advice.request_trace import RequestTrace
from dieselfs.cache.advice.tier_comparison import POLICIES, Question, compare

EPOCHS = 4
CHUNK_BYTES = 4 << 20


def recorder(folder: Path, requests: int) -> None:
    tags = ReaderTags(OneBucket(Bucket("bench")), "job")
    reads = [
        ChunkRead(tags, bytes(16), at.to_bytes(16, "big"), 0, CHUNK_BYTES, CHUNK_BYTES)
        for at in range(requests)
    ]

    def asked(runner: PolicyRunner) -> float:
        began = time.perf_counter()
        for read in reads:
            runner.asked(read, hit=False)
        return (time.perf_counter() - began) / requests * 1e6

    runner = PolicyRunner(PolicyChoice(), AdmitAll())
    without = asked(runner)
    recording = Recorder(TraceSettings(folder / "trace"))
    runner.observe = recording
    recorded = asked(runner)
    began = time.process_time()
    recording.flush()
    flushed = (time.process_time() - began) / requests * 1e6
    recording.close()
    report(
        "recorder",
        recorder_us=recorded - without,
        request_us=without,
        flush_us=flushed,
        bytes_a_request=(folder / "trace").stat().st_size / requests,
        dropped=recording.dropped,
    )


def replays(requests: int) -> None:
    chunks, order = requests // EPOCHS, random.Random(1)
    keys = [key for _ in range(EPOCHS) for key in order.sample(range(chunks), chunks)]
    trace = RequestTrace(
        times_s=np.arange(len(keys)) * 0.05,
        keys=np.array(keys, np.uint64) * np.uint64(0x9E3779B97F4A7C15),
        lengths=np.full(len(keys), CHUNK_BYTES, np.int64),
        jobs=np.zeros(len(keys), np.int64),
        buckets=np.zeros(len(keys), np.int64),
        job_names=["job"],
        bucket_names=[Bucket("bench")],
    )
    size = chunks * CHUNK_BYTES // 2
    began = time.process_time()
    optimum(trace, size)
    alone = time.process_time() - began
    report("replay", policy="optimum", requests_a_s=len(keys) / alone)
    for policy in POLICIES:
        began = time.process_time()
        compare(trace, Question((size,), (policy,), write_budget=100e6))
        seconds = time.process_time() - began - alone  # `compare` has the optimum too
        report("replay", policy=policy, requests_a_s=len(keys) / seconds)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--requests", type=int, default=100_000)
    options = parser.parse_args()
    if options.requests < 1000:
        parser.error("--requests: 1000 at least")
    with scratch("dieselfs-advice-") as folder:
        recorder(folder, options.requests)
    replays(options.requests)


if __name__ == "__main__":
    main()
