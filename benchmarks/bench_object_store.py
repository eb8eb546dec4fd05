"""What do our wrappers cost on a real object store, and what does packing gain there?

A Ceph of one OSD on loopback, through its S3 gateway (`scripts/ceph.sh`). Expectation: a chunk of 4
MiB takes 6 ms of the gateway's time with 16 in flight; our part is a copy (0.5 ms), five wrappers
(20 µs) and two hand-overs between threads (50 µs). A put is bound by the OSD; packing 110 KiB files
costs a third of a core. One object a file costs a round trip and an entry in the gateway's index
each: some hundred a second.

    python -m benchmarks.bench_object_store [--chunks 96] [--files 5000] [--rounds 5] [--quick]
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import boto3
import obstore
from obstore.store import S3Store

from benchmarks.harness import DLCMD, REPOSITORY, make_tree, report, run_rounds, scratch, spread
from dieselfs.assembly import open_store

ENDPOINT = "http://127.0.0.1:7480"
AT_ONCE = 16
CHUNK_BYTES = 4 << 20
SIZE_BYTES, SMALL_BYTES = 110 << 10, 4096


def in_parallel(calls: list[Callable[[], object]]) -> None:
    with ThreadPoolExecutor(AT_ONCE) as pool:
        for done in [pool.submit(call) for call in calls]:
            done.result()


class CpuSeconds:
    """The CPU seconds of rounds: of this process and those that it has waited for (the client),
    and of Ceph's daemons (the gateway)."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, str], list[float]] = {}

    def counted(self, name: str, work: Callable[[], float]) -> Callable[[], float]:
        def run() -> float:
            before = self._now()
            result = work()
            for kind, seconds in self._now().items():
                self._found.setdefault((name, kind), []).append(seconds - before[kind])
            return result

        return run

    def median(self, name: str, kind: str) -> float:
        return statistics.median(self._found[name, kind])

    def _now(self) -> dict[str, float]:
        return {"client": sum(os.times()[:4]), "gateway": sum(map(_cpu_s, _daemons()))}


def _daemons() -> list[Path]:
    return [
        path.parent
        for path in Path("/proc").glob("[0-9]*/comm")
        if path.read_text().strip() in ("radosgw", "ceph-osd")
    ]


def _cpu_s(process: Path) -> float:
    fields = (process / "stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Gateway:
    """Buckets on it, as a program that uses obstore alone has them, and as ours has them."""

    def __init__(self) -> None:
        self._count = 0
        self._client = boto3.client("s3", endpoint_url=ENDPOINT, region_name="us-east-1")

    def bucket(self) -> str:
        self._count += 1
        self._client.create_bucket(Bucket=f"bench-{self._count}")
        return f"bench-{self._count}"

    def remove(self, bucket: str) -> None:
        """With all that is in it: the disk of the OSD is small."""
        bare = self.bare(bucket)
        for page in obstore.list(bare):
            obstore.delete(bare, [entry["path"] for entry in page])

    def bare(self, bucket: str) -> S3Store:
        return S3Store(
            bucket,
            config={"endpoint": ENDPOINT, "region": "us-east-1"},
            client_options={"allow_http": True},
        )

    def url(self, bucket: str) -> str:
        return f"s3://{bucket}?endpoint={ENDPOINT}&region=us-east-1"


def reads(gateway: Gateway, chunks: int, rounds: int) -> None:
    bucket = gateway.bucket()
    bare, ours = gateway.bare(bucket), open_store(gateway.url(bucket))
    data = random.Random(1).randbytes(CHUNK_BYTES)
    keys = [f"datasets/d/chunks/{number:06d}" for number in range(chunks)]
    for key in keys:
        obstore.put(bare, key, data)

    def read(get: Callable[[str], object]) -> None:
        def checked(key: str) -> None:
            assert len(get(key)) == CHUNK_BYTES  # type: ignore[arg-type]

        in_parallel([lambda key=key: checked(key) for key in keys])  # type: ignore[misc]

    result = run_rounds(
        {
            "ours": lambda: read(ours.get),
            "obstore": lambda: read(lambda key: obstore.get(bare, key).bytes()),
        },
        rounds,
    )
    report(
        "chunk reads from radosgw, 16 in flight: ours over bare obstore",
        ratio=spread(result.ratios("ours", "obstore")),
        ours_mb_s=chunks * CHUNK_BYTES / 1e6 / result.median("ours"),
        obstore_mb_s=chunks * CHUNK_BYTES / 1e6 / result.median("obstore"),
    )


def puts(gateway: Gateway, folder: Path, files: int, rounds: int) -> None:
    """`dlcmd put` against as many bytes in objects of 4 MiB, 16 at a time. Both cores are busy all
    the while, so what counts is CPU: ours, and the gateway's and its disk's."""
    source = folder / "source"
    make_tree(source, files, 50, SIZE_BYTES)
    total = files * SIZE_BYTES
    data = random.Random(2).randbytes(CHUNK_BYTES)

    def objects() -> float:
        bucket = gateway.bucket()
        bare, begin = gateway.bare(bucket), time.perf_counter()
        count = -(-total // CHUNK_BYTES)
        in_parallel([lambda n=n: obstore.put(bare, f"o{n}", data) for n in range(count)])  # type: ignore[misc]
        seconds = time.perf_counter() - begin
        gateway.remove(bucket)
        return seconds

    cpu = CpuSeconds()
    result = run_rounds(
        {
            "ours": cpu.counted("ours", lambda: put(gateway, folder, source)),
            "objects": cpu.counted("objects", objects),
        },
        rounds,
        warm_up=1,
    )
    report(
        "dlcmd put of 110 KiB files to radosgw over parallel puts of 4 MiB objects",
        ratio=spread(result.ratios("ours", "objects")),
        ours_mb_s=total / 1e6 / result.median("ours"),
        objects_mb_s=total / 1e6 / result.median("objects"),
        files=files,
        ours_cpu_s=cpu.median("ours", "client"),
        objects_cpu_s=cpu.median("objects", "client"),
        gateway_cpu_s_for_ours=cpu.median("ours", "gateway"),
        gateway_cpu_s_for_objects=cpu.median("objects", "gateway"),
    )


def small_puts(gateway: Gateway, folder: Path, files: int, rounds: int) -> None:
    """Against one object a file, for a tenth of the files."""
    source = folder / "small"
    make_tree(source, files, 50, SMALL_BYTES)
    few = sorted(source.rglob("*.jpg"))[: files // 10]

    def object_each() -> None:
        bare = gateway.bare(gateway.bucket())

        def one(path: Path) -> None:
            obstore.put(bare, f"{path.parent.name}/{path.name}", path.read_bytes())

        in_parallel([lambda path=path: one(path) for path in few])  # type: ignore[misc]

    result = run_rounds(
        {"ours": lambda: put(gateway, folder, source), "object each": object_each},
        rounds,
        warm_up=0,
    )
    scale = files / len(few)
    report(
        "dlcmd put of 4 KiB files to radosgw over one object a file, files/s",
        ratio=spread([ratio * scale for ratio in result.ratios("ours", "object each")]),
        ours_files_s=files / result.median("ours"),
        object_each_files_s=len(few) / result.median("object each"),
        files=files,
    )


def put(gateway: Gateway, folder: Path, source: Path) -> float:
    bucket = gateway.bucket()
    environment = {
        **os.environ,
        "DIESELFS_STORE": gateway.url(bucket),
        "DIESELFS_INDEX": f"lmdb://{folder}/index-{gateway._count}",
        "XDG_DATA_HOME": str(folder / "data"),
    }
    begin = time.perf_counter()
    subprocess.run(
        [*DLCMD, "put", "-q", f"{source}/", "bench"], check=True, env=environment, cwd=REPOSITORY
    )
    seconds = time.perf_counter() - begin
    gateway.remove(bucket)
    return seconds


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--chunks", type=int, default=96)
    parser.add_argument("--files", type=int, default=5000)
    parser.add_argument("--small-files", type=int, default=40_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    if options.quick:
        options.chunks, options.files, options.small_files, options.rounds = 16, 200, 2000, 1
    os.environ.update(AWS_ACCESS_KEY_ID="AK", AWS_SECRET_ACCESS_KEY="SK")
    script = REPOSITORY / "scripts" / "ceph.sh"
    subprocess.run([script, "install"], check=True)
    with scratch("object-store") as folder:
        ceph = folder / "ceph"
        try:
            subprocess.run([script, "up", ceph], check=True, stdout=subprocess.DEVNULL)
            gateway = Gateway()
            reads(gateway, options.chunks, options.rounds)
            puts(gateway, folder, options.files, options.rounds)
            small_puts(gateway, folder, options.small_files, min(options.rounds, 3))
        finally:
            subprocess.run([script, "down", ceph], check=False)
    return 0


if __name__ == "__main__":
    sys.exit(main())
