"""`dlcmd stats` with real daemons, and what it makes of a sample."""

import fcntl
import json
import os
import pty
import signal
import struct
import subprocess
import sys
import termios
import time
from contextlib import suppress
from pathlib import Path

import pytest

from dieselfs.cli.rendering.mount_statistics import Sample, rows, summary
from tests.dieselfs.cli.conftest import Dlcmd
from tests.eventually import PATIENCE_S, eventually, scaled_by_load
from tests.stopping import stop

CHECKOUT = Path(__file__).parents[4]
PATIENT = f"""
from dieselfs.cli import main
from dieselfs.cli.commands import stats
stats._TIMEOUT_S = {PATIENCE_S}
main()
"""
"""`dlcmd`, whose `stats` waits longer for a mount than the 5 s that a busy one may exceed."""
needs_fuse = pytest.mark.skipif(not Path("/dev/fuse").exists(), reason="needs FUSE")


@pytest.fixture
def mounted(dlcmd: Dlcmd, dataset: Path, mountpoint: Path) -> Path:
    assert dlcmd("mount", "pets", mountpoint, "--prefill", "0").code == 0
    assert (mountpoint / "cat/1.jpg").read_bytes() == b"meow" * 100
    return mountpoint


def processes_of(mount: Path) -> tuple[int, int]:
    """The supervisor, and the server."""
    found = json.loads((mount / ".dieselfs/dataset.json").read_text())
    return found["pid"], found["server_pid"]


def test_rates_are_since_the_last_look() -> None:
    earlier = Sample({"uptime_s": 10.0, "requests": {"read": 100}, "bytes_read": 0})
    sample = Sample(
        {
            "uptime_s": 12.0,
            "requests": {"lookup": 4, "read": 1100},
            "bytes_read": 4096,
            "hits": {"node_memory": 1000},
            "front": {"kind": "erofs", "reason": "on Linux 6.18.0"},
            "page_cache": {
                "filled": {"filled_files": 63, "filled_bytes": 2048},
                "prefill": {"outstanding_bytes": 1 << 20, "budget_bytes": 1 << 30},
            },
        }
    )
    shown = {what: (total, rate) for what, total, rate in rows(sample, earlier, human=True)}
    assert shown["request read"] == ("1,100", "500.0")
    assert shown["request lookup"] == ("4", "2.0")
    assert shown["bytes read"] == ("4.0 KiB", "2.0 KiB/s")
    assert shown["node memory hits"] == ("1,000", "500.0")
    assert shown["front"] == ("erofs, on Linux 6.18.0", "")
    assert shown["bytes loaded into the page cache"] == ("2.0 KiB", "1.0 KiB/s")
    assert shown["prefilled, not read yet"] == ("1.0 MiB of 1.0 GiB", "")
    assert sample.rate(Sample(), "requests.read") == pytest.approx(1100 / 12)


def test_node_memory_and_the_plan_are_shown() -> None:
    sample = Sample(
        {
            "uptime_s": 2.0,
            "waits_over_1_ms": 3,
            "cache": {
                "fallbacks": 7,
                "node": {
                    "cached_bytes": 1 << 20,
                    "budget_bytes": 4 << 20,
                    "prefetched": 50,
                    "prefetched_used": 40,
                    "prefetched_wasted": 2,
                },
            },
            "plan": {"files": 6000, "position": 1500, "window_bytes": 2 << 20, "late": 5},
            "plan_sources": {"shared_memory": 0, "mount": 2, "lists": 1},
        }
    )
    shown = {what: total for what, total, _ in rows(sample, Sample(), human=True)}
    assert shown["node memory"] == "1.0 MiB of 4.0 MiB"
    assert shown["chunks prefetched"] == "50"
    assert shown["prefetched chunks used"] == "40"
    assert shown["prefetched chunks wasted"] == "2"
    assert shown["reads that bypassed node memory"] == "7"
    assert shown["waits over 1 ms"] == "3"
    assert (shown["plan: position"], shown["plan: window"]) == ("1,500 of 6,000", "2.0 MiB")
    assert shown["plan: told"] == "2 through the mount, 1 by a list"
    assert shown["plan: late chunks"] == "5"
    assert ("plan: position", "no plan", "") in rows(Sample(), Sample(), human=False)


@pytest.mark.parametrize(
    "document",
    [{}, {"requests": 7, "front": [], "hits": {"store": "many"}}, {"uptime_s": None}],
)
def test_an_odd_look_is_shown_as_zeros(document: dict[str, object]) -> None:
    sample = Sample(document)
    assert ("node memory misses", "0", "0.0") in rows(sample, sample, human=False)
    assert ("front", "unknown", "") in rows(sample, sample, human=False)


BUSY = {
    "uptime_s": 1e6,
    "front": {"kind": "erofs-loop", "reason": "on Linux 6.18.0, by the mount service"},
    "requests": {"read": 10**9},
    "bytes_read": 10**14,
    "hits": {"node_memory": 970, "misses": 30},
    "waits_over_1_ms": 10**7,
    "waited_s": 1e5,
    "failed_reads": {"total": 12, "kinds": {"Corrupt": 10, "Unavailable": 2}},
    "cache": {
        "fallbacks": 10**6,
        "node": {
            "cached_bytes": 10**11,
            "budget_bytes": 10**12,
            "evictions": 10**6,
            "fetches": 10**6,
            "fetched_bytes": 10**13,
        },
    },
    "page_cache": {
        "filled": {"filled_files": 10**8},
        "prefill": {"outstanding_bytes": 10**9, "budget_bytes": 10**10},
    },
    "plan": {"files": 1_280_000, "position": 640_000, "window_bytes": 10**9, "late": 1000},
    "peers": {"members": 16, "members_up": 15, "sources": {"from_peers": 25}},
    "cache_cluster": {"nodes": 8, "nodes_up": 7, "chunks_from_nodes": 25},
    "ssd": {
        "in_service": True,
        "hits": 25,
        "misses": 75,
        "warmup": {"state": "running", "cached_bytes": 10**10, "bytes": 10**12},
    },
    "store": {"hedge": {"reads": 25}, "retry": {"retries": 3}},
}


def test_twelve_lines_of_eighty_columns_say_what_matters() -> None:
    lines = dict(summary(Sample(BUSY), Sample(), human=True))
    assert len(lines) == 12
    assert max(map(len, lines)) < 12
    assert max(map(len, lines.values())) <= 80 - 12, lines
    assert lines["files"] == "1/s along the plan"
    assert lines["from"] == "node memory 97 %, missed 3.0 %"
    assert lines["fetched"].endswith("SSD 25 %, peers 25 %, cache nodes 25 %, store 25 %")
    assert lines["errors"].startswith("12 READs failed (10 Corrupt, 2 Unavailable)")
    assert lines["errors"].endswith("store: 3 retries")
    assert lines["plan"] == "640,000 of 1,280,000 files, window 954 MiB, 1,000 late chunks"
    assert lines["SSD"] == "in service; hits 25 %, misses 75 %; warmed 9.3 GiB of 931 GiB"
    assert lines["peers"] == "15 of 16 up; cache nodes: 7 of 8 up"


def test_a_cache_policy_says_what_it_served_and_wrote() -> None:
    gib = 1 << 30
    acting = {"name": "reject-first", "counts": {"hit_bytes": 3 * gib, "miss_bytes": gib}}
    shadow = {"name": "lru", "counts": {"filled_bytes": 2 * gib, "written_bytes": 5 * gib}}
    acting["counts"]["written_bytes"] = 7 * gib  # type: ignore[index]
    ssd = {**BUSY["ssd"], "warmup": None, "policy": {"acting": acting, "shadow": shadow}}  # type: ignore[dict-item]
    sample = Sample({**BUSY, "ssd": ssd})
    line = dict(summary(sample, Sample(), human=True))["SSD"]
    assert line == "in service; hits 25 %, misses 75 %; reject-first wrote 7.0 GiB"
    shown = {what: total for what, total, _ in rows(sample, Sample(), human=True)}
    assert shown["SSD cache policy"] == (
        "reject-first; served 3.0 GiB of 4.0 GiB, filled by 0 B, wrote 7.0 GiB"
    )
    assert shown["SSD shadow policy"].startswith("lru; served 0 B of 0 B, filled by 2.0 GiB")


def test_shares_are_those_since_the_last_look() -> None:
    earlier = Sample({"uptime_s": 1.0, "hits": {"node_memory": 970, "misses": 30}})
    now = Sample({"uptime_s": 2.0, "hits": {"node_memory": 971, "misses": 33}})
    assert dict(summary(now, earlier, human=True))["from"] == "node memory 25 %, missed 75 %"
    still = dict(summary(now, now, human=True))["from"]
    assert still == "node memory 97 %, missed 3.3 % (in all)"


def test_a_new_mount_has_twelve_lines_too() -> None:
    lines = dict(summary(Sample(), Sample(), human=False))
    assert (len(lines), lines["errors"], lines["plan"], lines["SSD"]) == (12, *["none"] * 3)


def test_reads_from_the_store_are_counted_without_peers() -> None:
    shown = {what: total for what, total, _ in rows(Sample(BUSY), Sample(), human=True)}
    assert shown["reads from the store"] == "25"
    assert (shown["reads that failed"], shown["reads that failed: Corrupt"]) == ("12", "10")


@needs_fuse
def test_not_on_a_terminal_it_looks_once(dlcmd: Dlcmd, mounted: Path) -> None:
    result = dlcmd("stats", mounted)
    assert (result.code, len(result.lines)) == (0, 12)
    [line] = [line for line in result.lines if line.startswith("read ")]
    assert "400 in all" in line
    [line] = [line for line in result.lines if line.startswith("fetched ")]
    assert "store 100 %" in line, "this is the only tier"
    result = dlcmd("stats", "--all", mounted)
    assert (result.code, result.lines[0].split()) == (0, ["WHAT", "TOTAL", "PER", "SECOND"])
    [line] = [line for line in result.lines if line.startswith("bytes read")]
    assert line.split()[2] == "400"
    [line] = [line for line in result.lines if line.startswith("reads from the store  ")]
    assert int(line.split()[4]) > 0
    [record] = dlcmd("stats", "--json", mounted).records
    assert (record["mountpoint"], record["bytes_read"]) == (str(mounted), 400)
    assert record["rates"]["interval_s"] == record["uptime_s"]
    assert record["rates"]["bytes_read"] > 0
    assert record["failed_reads"] == {"total": 0, "kinds": {}}
    assert record["rates"]["peers.sources.from_store"] == 0, "a key of the release before"
    assert dlcmd("umount", mounted).code == 0


@needs_fuse
def test_json_with_an_interval_goes_on_until_the_mount_ends(dlcmd: Dlcmd, mounted: Path) -> None:
    command = [sys.executable, "-c", PATIENT, "stats", "--json", "--interval", "0.1"]
    with subprocess.Popen(
        [*command, mounted],
        cwd=CHECKOUT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        samples = [json.loads(process.stdout.readline()) for _ in range(3)]
        assert samples[0]["uptime_s"] < samples[1]["uptime_s"] < samples[2]["uptime_s"]
        assert samples[2]["rates"]["interval_s"] < samples[2]["uptime_s"]
        assert dlcmd("umount", "--lazy", mounted).code == 0
        process.stdout.read()
        error = json.loads(process.stderr.read())
    assert process.returncode == 1
    assert any(word in error["message"] for word in ("unmounted", "is gone"))


@needs_fuse
def test_on_a_terminal_it_is_live_and_ctrl_c_ends_it_quietly(dlcmd: Dlcmd, mounted: Path) -> None:
    terminal, inner = pty.openpty()
    fcntl.ioctl(inner, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    command = [sys.executable, "-c", PATIENT, "stats", "--interval", "0.1", mounted]
    with subprocess.Popen(
        command,
        cwd=CHECKOUT,
        stdin=inner,
        stdout=inner,
        stderr=subprocess.PIPE,
        env={**os.environ, "TERM": "xterm"},
        # Ignored by whatever a shell has started in the background, and inherited.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    ) as process:
        os.close(inner)
        shown = b""
        while shown.count(b"page cache") < 3:
            shown += os.read(terminal, 1 << 16)
        process.send_signal(signal.SIGINT)
        with suppress(
            OSError
        ):  # EIO when it has ended: until then it may wait for room in the terminal
            while os.read(terminal, 1 << 16):
                pass
        assert process.stderr is not None
        assert process.stderr.read() == b""
    os.close(terminal)
    assert process.returncode == 0
    screen = shown[: shown.index(b"cache nodes")]
    assert (screen.count(b"\n"), b"..." in screen) == (11, False), "all lines are on the screen"
    assert dlcmd("umount", mounted).code == 0


@needs_fuse
def test_a_mount_that_hangs_or_has_died_is_an_error_in_time(
    dlcmd: Dlcmd, mounted: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dieselfs.cli.commands.stats._TIMEOUT_S", 0.5)
    supervisor, daemon = processes_of(mounted)
    stop(daemon)
    began = time.monotonic()
    result = dlcmd("stats", mounted)
    assert (result.code, "does not answer" in result.err, "--lazy" in result.err) == (1, True, True)
    assert time.monotonic() - began < scaled_by_load(10)
    for pid in (supervisor, daemon):
        os.kill(pid, signal.SIGKILL)  # ends a stopped process too
    eventually(lambda: "is gone" in dlcmd("stats", mounted).err, "the end of both")
    result = dlcmd("stats", mounted)
    assert (result.code, "dlcmd umount" in result.err) == (1, True)


def test_what_is_no_mount_is_said(dlcmd: Dlcmd, tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "absent", Path("/proc")):
        result = dlcmd("stats", path)
        assert (result.code, "no DieselFS mount at" in result.err) == (1, True)
        assert "dlcmd mounts" in result.err
