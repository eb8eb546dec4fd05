"""Training goes on while its store comes and goes and other mounts do too: `python -m
tests.faults.soak [--minutes 30]`.

One mount with little memory serves a job whose DataLoader workers are forked for each epoch. Its
store is out, hangs, is slow or answers 5xx every few seconds. Beside it the same dataset is
mounted, read and unmounted again and again. In the end: no byte was wrong, no read failed, and the
daemon has no more descriptors, threads and memory than after its first third; every read was a hit
or a miss. `--samples FILE` writes what was seen of the daemon each second.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tests.eventually import PATIENCE_S, eventually
from tests.faults.flapping_store import set_mode
from tests.faults.reading import content
from tests.faults.served import Place, Served
from tests.faults.training import SIZE

FILES = [f"f{number:04}" for number in range(1500)]
CHUNK_BYTES = 256 << 10
MEMORY = "6MiB"
"""A quarter of the dataset: something is evicted all the time."""
FAULTS = ("out", "hung", "slow", "errors", "resetting")
SAID_OF_AN_OUTAGE = ("connection", "503", "did not answer", "not been answered")
ENDS_S = PATIENCE_S
FLAT_FROM_S = 6000
"""After a third of so long a soak, memory grows by at most 2 %."""
SAMPLED_EVERY_S = 1.0


@dataclass(slots=True)
class Sampled:
    """Of the daemon, once a second."""

    descriptors: list[int] = field(default_factory=list)
    threads: list[int] = field(default_factory=list)
    anonymous_bytes: list[int] = field(default_factory=list)
    """Its own memory; node memory is the task's."""

    def take(self, mount: Served) -> None:
        descriptors, threads = mount.resources()
        status = Path(f"/proc/{mount.servers()[0]}/status").read_text()
        [kib] = [line.split()[1] for line in status.splitlines() if line.startswith("RssAnon")]
        self.descriptors.append(descriptors)
        self.threads.append(threads)
        self.anonymous_bytes.append(int(kib) << 10)

    def thirds(self, column: list[int]) -> tuple[float, float, float]:
        """The medians of the first third, the second and the last."""
        third = max(1, len(column) // 3)
        first, second, last = column[:third], column[third:-third] or column, column[-third:]
        return statistics.median(first), statistics.median(second), statistics.median(last)


@dataclass(slots=True)
class Doing:
    """Threads that do things until they are told to stop."""

    stop: threading.Event = field(default_factory=threading.Event)
    errors: list[BaseException] = field(default_factory=list)
    threads: list[threading.Thread] = field(default_factory=list)
    rounds: dict[str, int] = field(default_factory=dict)

    def begin(self, name: str, once: Callable[[], None]) -> None:
        def go_on() -> None:
            try:
                while not self.stop.is_set():
                    once()
                    self.rounds[name] = self.rounds.get(name, 0) + 1
            except BaseException as error:
                self.errors.append(error)

        self.threads.append(threading.Thread(target=go_on, name=name))
        self.threads[-1].start()

    def end(self) -> None:
        self.stop.set()
        for thread in self.threads:
            thread.join()


def soak(folder: Path, seconds: float, samples: Path | None = None) -> dict[str, Any]:
    """What was done and seen; `AssertionError` for anything that went wrong.

    The seconds begin with the first batch, and last until everything was done at least once.
    """
    place = Place(folder / "place")
    place.make({path: content(path, SIZE) for path in FILES}, CHUNK_BYTES).close()
    options = ("--memory", MEMORY, "--eviction", "lru", "--task", f"soak-{os.getpid()}")
    sampled, doing, chance = Sampled(), Doing(), random.Random(1)
    stop, beats = folder / "stop", folder / "beats"
    with place.mounted(folder / "mnt", *options) as mount:
        job = subprocess.Popen(
            [sys.executable, "-m", "tests.faults.training", str(mount.path), str(stop), str(beats)],
            cwd=Path(__file__).parents[2],
        )

        def flap() -> None:
            doing.stop.wait(chance.uniform(1, 4))
            set_mode(place.folder, chance.choice(FAULTS))
            doing.stop.wait(chance.uniform(0.2, 2))
            set_mode(place.folder, "ok")

        def come_and_go() -> None:
            done = place.dlcmd("mount", "--json", "--no-index", *options, "d", other)
            if done.returncode:
                # The store was out: somebody watches, and is told.
                assert any(what in done.stderr for what in SAID_OF_AN_OUTAGE), done.stderr
                return
            try:  # it shares the server of the other mount, if that has the same options
                for path in chance.sample(FILES, 20):
                    assert (other / path).read_bytes() == content(path, SIZE)
            finally:
                assert place.dlcmd("umount", "--lazy", other).returncode == 0

        other = folder / "other"
        other.mkdir()
        doing.begin("faults", flap)
        doing.begin("mounts", come_and_go)
        try:
            eventually(
                lambda: job.poll() is not None or (beats.exists() and beats.stat().st_size),
                "a first batch",
            )
            deadline = time.monotonic() + seconds
            while time.monotonic() < deadline or len(doing.rounds) < len(doing.threads):
                if doing.stop.wait(SAMPLED_EVERY_S) or doing.errors or job.poll() is not None:
                    break
                sampled.take(mount)
                if samples is not None:
                    samples.write_text(json.dumps(asdict(sampled)))
        finally:
            doing.end()
            set_mode(place.folder, "ok")
            stop.touch()
            try:
                job.wait(ENDS_S)
            finally:
                job.kill()
                job.wait()
        assert not doing.errors, doing.errors
        assert job.returncode == 0
        after = mount.statistics()
        assert "Traceback" not in mount.log, mount.log
        assert "EIO" not in mount.log, mount.log
    found: dict[str, Any] = {
        "seconds": seconds,
        "batches": beats.stat().st_size,
        **doing.rounds,
        "reads": after["requests"]["read"],
        **{f"reads of {kind}": count for kind, count in after["hits"].items()},
        **{f"reads of {kind}": count for kind, count in after["other_reads"].items()},
    }
    for name, slack in (("descriptors", 4), ("threads", 12), ("anonymous_bytes", 24 << 20)):
        first, _, last = found[name] = sampled.thirds(getattr(sampled, name))
        assert last <= 1.1 * first + slack, (name, found)
    # The others are counts, which change by one or two with what is under way.
    _, second, last = found["anonymous_bytes"]
    assert seconds < FLAT_FROM_S or last <= 1.02 * second, ("anonymous_bytes", found)
    # One READ of a blob may be many ranges of files, so sums of them say nothing: no READ was
    # refused.
    assert found["reads of refused"] == 0, found
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--samples", type=Path, metavar="FILE")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="dieselfs-soak-") as folder:
        print(json.dumps(soak(Path(folder), chosen.minutes * 60, chosen.samples), indent=2))
    return os.EX_OK


if __name__ == "__main__":
    sys.exit(main())
