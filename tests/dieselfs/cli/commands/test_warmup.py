"""`dlcmd warmup`, `dlcmd cache` and `dlcmd ls --cached`: a dataset on an SSD under the user's
hand."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from chunkstore.errors import NotFound
from chunkstore.ssd.policy_choice import PolicyChoice
from chunkstore.stores.local_directory import LocalDirectory
from dieselfs.assembly import open_index, open_store
from dieselfs.cache.ssd.settings import SsdSettings, chosen_tier, end_tiers, shared_tier
from dieselfs.cli.rendering.exit_codes import ExitCode
from dieselfs.client import Client
from dieselfs.errors import UsageError
from tests.dieselfs.cli.conftest import FILES, Dlcmd
from tests.eventually import eventually

MIB = 1 << 20
pytestmark = pytest.mark.usefixtures("pets", "ssd")


@pytest.fixture
def ssd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("DIESELFS_SSD", str(tmp_path / "ssd"))
    monkeypatch.setenv("DIESELFS_SSD_SIZE", "30MiB")
    yield tmp_path / "ssd"
    end_tiers()


def test_what_is_brought_is_there_and_goes_when_it_is_told(dlcmd: Dlcmd, ssd: Path) -> None:
    checked = dlcmd("warmup", "--check", "pets", "--ssd-size", "30MiB")
    assert (checked.code, "0 of 1 chunk" in checked.out.decode()) == (ExitCode.FOUND, True)
    [loaded] = dlcmd("warmup", "--json", "pets").records
    assert (loaded["loaded"], loaded["cached_chunks"], loaded["no_room"]) == (1, 1, 0)
    assert loaded["loaded_bytes"] == loaded["bytes"] > sum(map(len, FILES.values()))
    [again] = dlcmd("warmup", "--json", "pets").records
    assert (again["loaded"], again["cached_chunks"]) == (0, 1)
    assert dlcmd("warmup", "--check", "pets").code == ExitCode.OK
    [dataset, tier] = dlcmd("cache", "ls", "--json").records
    assert (dataset["dataset"], dataset["bytes"]) == ("pets", 4 * MIB)
    assert (tier["budget_bytes"], tier["used_bytes"]) == (30 * MIB, 4 * MIB)
    [listed] = dlcmd("ls", "pets:readme.txt", "--cached", "--json").records
    assert (listed["ssd"], listed["memory"]) == ("all", False)
    assert dlcmd("ls", "pets:readme.txt", "--cached").lines == ["all   -       readme.txt"]
    [counts] = dlcmd("ls", "pets", "-r", "--cached", "--count-only", "--json").records
    assert counts["ssd"] == {"all": counts["files"], "part": 0, "none": 0}
    assert dlcmd("ls", "--cached").code == ExitCode.USAGE
    assert dlcmd("warmup", "--evict", "pets").code == ExitCode.OK
    assert dlcmd("warmup", "--check", "pets").code == ExitCode.FOUND
    assert sum(path.stat().st_blocks * 512 for path in ssd.rglob("*")) < MIB


def test_only_new_chunks_since_a_snapshot(dlcmd: Dlcmd, url: str, snapshots: Path) -> None:
    assert dlcmd("snapshot", "create", "pets").code == ExitCode.OK
    assert dlcmd("snapshot", "tag", "pets", "v1").code == ExitCode.OK
    with Client.connect(
        "pets", store=open_store(url), index=open_index(url), snapshot_folder=snapshots
    ) as client:
        client.put(b"new" * 1000, "new.bin")
    [loaded] = dlcmd("warmup", "--json", "--since", "v1", "pets").records
    assert (loaded["chunks"], loaded["loaded"]) == (1, 1)
    assert 3000 < loaded["bytes"] < 30_000
    [whole] = dlcmd("warmup", "--check", "--json", "pets").records
    assert (whole["chunks"], whole["cached_chunks"]) == (2, 1)


def test_a_policy_is_changed_without_a_restart(
    dlcmd: Dlcmd, ssd: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert dlcmd("warmup", "pets").code == ExitCode.OK
    tier = shared_tier(SsdSettings(ssd))  # as of any process that has it open
    assert tier.runner is None
    [shown] = dlcmd("cache", "policy", "--json").records
    assert (shown["policy"], shown["in_folder"]) == ("lru", False)
    [changed] = dlcmd("cache", "policy", "future", "--write-budget", "1MB/s", "--json").records
    assert (changed["policy"], changed["write_budget"]) == ("future", MIB)
    eventually(lambda: tier.runner is not None and tier.runner.policy == "future")
    dlcmd("cache", "policy", "--shadow", "historic", "--write-budget", "none")
    wanted = PolicyChoice("future", "historic")
    eventually(lambda: tier.runner is not None and tier.runner.choice == wanted)
    assert "future (set in the folder)" in dlcmd("cache", "policy").out.decode()
    assert dlcmd("cat", "pets:readme.txt").code == ExitCode.OK

    def published() -> list[dict[str, Any]]:
        """Return what both policies have decided; the shadow hears later of a read in a refresh."""
        listed = dlcmd("cache", "ls", "-v", "--json").records[:-1]
        found = [of["cache_policy"] for of in listed if "cache_policy" in of]
        return found if {of["role"] for of in found} == {"acting", "shadow"} else []

    decided = eventually(published, "what both policies decide")
    assert {(of["role"], of["name"], of["bucket"]) for of in decided} == {
        *(("acting", "future", "pets"), ("shadow", "historic", "pets"))
    }
    assert sum(of["hit_bytes"] for of in decided if of["role"] == "acting") > 0
    assert "historic (shadow)" in dlcmd("cache", "ls", "-v").out.decode()
    assert "hybrid" in dlcmd("cache", "policy", "clever").err
    assert "100MB/s" in dlcmd("cache", "policy", "--write-budget", "0").err
    assert dlcmd("cache", "policy", "all", "--clear").code == ExitCode.USAGE
    assert dlcmd("cache", "policy", "--clear").code == ExitCode.OK
    eventually(lambda: tier.runner is None)


def test_a_policy_is_configured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DIESELFS_SSD_POLICY", "hybrid")
    monkeypatch.setenv("DIESELFS_SSD_WRITE_BUDGET", "2KB/s")
    settings = chosen_tier("configured")
    assert settings is not None
    assert settings.choice == PolicyChoice("hybrid", write_budget=2048)
    runner = settings.open().runner
    assert runner is not None
    assert runner.policy == "hybrid"
    monkeypatch.setenv("DIESELFS_SSD_ADMISSION", "reject-first")
    with pytest.raises(UsageError, match="--ssd-admission reject-first and --ssd-policy hybrid"):
        chosen_tier("configured")
    monkeypatch.setenv("DIESELFS_SSD_POLICY", "lru")
    assert chosen_tier("configured") is not None


@pytest.fixture
def parts(url: str, snapshots: Path) -> None:
    """The dataset `parts`: 12 files of 600 KB in directories of 3, each in a chunk of its own."""
    with Client.connect(
        "parts",
        store=open_store(url),
        index=open_index(url),
        create=True,
        snapshot_folder=snapshots,
        target_bytes=500_000,
        open_chunks=1,
    ) as client:
        for number in range(12):
            client.put(os.urandom(600_000), f"{number // 3}/{number}")


@pytest.mark.usefixtures("parts")
def test_a_path_a_list_or_an_epoch_is_warmed_alone(
    dlcmd: Dlcmd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    planned = dlcmd("warmup", "dl://parts/1", "-n", "--ssd-size", "30MiB")
    assert (planned.code, "would load 3 chunks" in planned.out.decode()) == (ExitCode.OK, True)
    [part] = dlcmd("warmup", "parts:1", "--json").records
    assert (part["chunks"], part["loaded"], part["cached_chunks"], part["refused"]) == (3, 3, 3, [])
    [there] = dlcmd("warmup", "parts:1/3", "--check", "--json").records
    assert (there["chunks"], there["cached_chunks"]) == (1, 1)
    assert dlcmd("warmup", "parts", "--check").code == ExitCode.FOUND

    names = tmp_path / "names"
    names.write_bytes(b"0/0\n\n./1/3\n2\n")
    [listed] = dlcmd("warmup", "parts", "--files-from", names, "--json").records
    assert (listed["chunks"], listed["cached_before"], listed["loaded"]) == (5, 1, 4)
    names.write_bytes(b"9\0" + b"10\0")
    [below] = dlcmd("warmup", "parts:3", "--files-from", names, "-0", "--json").records
    assert (below["chunks"], below["loaded"]) == (2, 2)
    [planned_all] = dlcmd("warmup", "parts", "--json", "-n").records
    assert (planned_all["missing"], planned_all["cached_before"]) == (3, 9)

    [epoch] = dlcmd("warmup", "parts", "--shuffle", "seed=1,epoch=2,world=2", "--json").records
    assert epoch["chunks"] in (6, 7)
    assert epoch["cached_chunks"] == epoch["chunks"]


@pytest.mark.usefixtures("parts")
def test_an_epoch_that_does_not_fit_says_how_much_does(dlcmd: Dlcmd) -> None:
    assert dlcmd("cache", "quota", "parts", "4MiB", "--ssd-size", "30MiB").code == ExitCode.OK
    partial = dlcmd("warmup", "parts", "--shuffle", "seed=1,epoch=3")
    assert (partial.code, "its quota is full" in partial.err) == (ExitCode.PARTIAL, True)
    [told] = dlcmd("warmup", "parts", "--shuffle", "seed=1,epoch=3", "--json").records
    [refused] = told["refused"]
    assert (refused["reason"], told["cached_chunks"]) == ("no room", 12 - refused["chunks"])
    assert 0 < told["cached_chunks"] < 12
    first = dlcmd("shuffle", "parts", "--seed", "1", "--epoch", "3").lines[: told["cached_chunks"]]
    for path in first:
        assert dlcmd("warmup", f"parts:{path}", "--check").code == ExitCode.OK, "the first of it"


@pytest.mark.usefixtures("parts")
def test_a_list_may_come_from_standard_input(dlcmd: Dlcmd, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"0\n1/4\n")))
    [loaded] = dlcmd("warmup", "parts", "--files-from", "-", "--json").records
    assert (loaded["chunks"], loaded["loaded"]) == (4, 4)
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"")))
    refused = dlcmd("warmup", "parts", "-b", "--files-from", "-")
    assert (refused.code, "standard input" in refused.err) == (ExitCode.USAGE, True)


def test_a_part_is_warmed_in_the_background(dlcmd: Dlcmd, dataset: Path, tmp_path: Path) -> None:
    names = tmp_path / "names"
    names.write_text("1.jpg\n")
    for part in (
        ["pets:cat"],
        ["pets:cat", "--files-from", names],
        ["pets", "--shuffle", "seed=2"],
    ):
        [begun] = dlcmd("warmup", "--background", "--json", *part).records
        _, status = os.waitpid(begun["pid"], 0)
        log = Path(begun["log"]).read_text().splitlines()
        assert os.waitstatus_to_exitcode(status) == 0, log
        assert "1 of 1 chunk" in log[-1]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["parts:none"], "no such file or directory"),
        (["parts", "--files-from", "/dev/null"], "the selection has no files"),
        (["parts", "--shuffle", "seed"], "write seed=1,epoch=0"),
        (["parts:1", "--shuffle", "seed=1"], "the order of a whole dataset"),
        (["parts:1", "--evict"], "for whole datasets"),
        (["parts:1", "--pin-mount"], "for whole datasets"),
        (["parts", "-n", "--check"], "--dry-run only prints"),
        (["parts", "-0"], "--files-from"),
    ],
)
@pytest.mark.usefixtures("parts")
def test_a_selection_that_can_t_be_is_refused(
    dlcmd: Dlcmd, arguments: list[str], told: str
) -> None:
    result = dlcmd("warmup", *arguments)
    assert (result.code not in (ExitCode.OK, ExitCode.PARTIAL), told in result.err) == (True, True)


def test_in_the_background_it_says_where_its_log_is(dlcmd: Dlcmd, dataset: Path) -> None:
    [begun] = dlcmd("warmup", "--background", "--json", "pets").records
    _, status = os.waitpid(begun["pid"], 0)
    log = Path(begun["log"]).read_text().splitlines()
    assert os.waitstatus_to_exitcode(status) == 0, log
    assert "warmup --ssd" in log[0]
    assert "1 of 1 chunk" in log[-1]
    assert dlcmd("warmup", "--check", "pets").code == ExitCode.OK


def test_limits_are_kept_and_shown(dlcmd: Dlcmd) -> None:
    small = dlcmd("cache", "quota", "pets", "1MiB", "--ssd-size", "30MiB")
    assert (small.code, "smaller than a region" in small.err) == (ExitCode.USAGE, True)
    assert dlcmd("cache", "quota", "pets", "8MiB").code == ExitCode.OK
    assert dlcmd("cache", "ttl", "pets", "7d").code == ExitCode.OK
    [pinned] = dlcmd("cache", "pin", "pets", "--json").records
    assert pinned == {
        "dataset": "pets",
        "quota_bytes": 8 * MIB,
        "ttl_s": 7 * 86_400,
        "pinned": True,
        "allocated_bytes": None,
    }
    assert dlcmd("cache", "ls", "--json").records[0]["quota_bytes"] == 8 * MIB
    assert dlcmd("cache", "unpin", "pets").code == ExitCode.OK
    assert dlcmd("cache", "quota", "pets", "none").code == ExitCode.OK
    [listed, _] = dlcmd("cache", "ls", "--json").records
    assert (listed["quota_bytes"], listed["pinned"]) == (None, False)
    assert dlcmd("cache", "evict", "nothing").code == ExitCode.DIRECTORY_NOT_FOUND


def test_only_the_flag_may_be_a_relative_folder(
    dlcmd: Dlcmd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert dlcmd("warmup", "pets", "--ssd", "near", "--ssd-size", "64MiB").code == ExitCode.OK
    assert (tmp_path / "near/budget").exists()
    monkeypatch.setenv("DIESELFS_SSD", "near")
    refused = dlcmd("cache", "ls")
    assert (refused.code, f"write {tmp_path}/near" in refused.err) == (ExitCode.USAGE, True)


_LOOKS = (
    ["cache", "ls"],
    ["cache", "policy"],
    ["cache", "evict", "pets"],
    ["cache", "quota", "pets", "20MiB"],
    ["cache", "ttl", "pets", "1d"],
    ["cache", "pin", "pets"],
    ["cache", "unpin", "pets"],
    ["cache", "resize", "20MiB"],
    ["ls", "pets", "--cached"],
    ["warmup", "pets", "--check"],
    ["warmup", "pets", "--evict"],
    ["warmup", "pets", "--dry-run"],
    ["warmup", "pets", "--pin-mount", "--check"],
    ["warmup", "pets", "--unpin-mount"],
)


@pytest.mark.parametrize("there", [False, True])
def test_looking_makes_no_tier(dlcmd: Dlcmd, tmp_path: Path, *, there: bool) -> None:
    """The folder may be that of a disk that is not mounted."""
    folder = tmp_path / "gone"
    if there:
        folder.mkdir()
    for looks in _LOOKS:
        result = dlcmd(*looks, "--ssd", folder)
        assert (result.code, "there is no tier in this folder: mount its disk" in result.err) == (
            ExitCode.USAGE,
            True,
        )
    assert folder.exists() == there
    assert not (there and list(folder.iterdir()))


@pytest.mark.parametrize("command", [["warmup", "pets"], ["mount", "pets", "m"], ["cache", "ls"]])
def test_a_folder_or_size_that_can_t_be_is_refused(
    dlcmd: Dlcmd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: list[str]
) -> None:
    """Before, an empty one was the current folder, and too small a tier was only to be seen in a
    log."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "m").mkdir()
    empty = dlcmd(*command, "--ssd", "")
    assert (empty.code, "--ssd none" in empty.err) == (ExitCode.USAGE, True)
    small = dlcmd(*command, "--ssd", "small", "--ssd-size", "2MiB")
    assert (small.code, "--ssd-size" in small.err) == (ExitCode.USAGE, True)
    assert not (tmp_path / "budget").exists()
    assert not [path for path in (tmp_path / "small").rglob("*") if path.is_file()]
    if command[0] != "mount":
        none = dlcmd(*command, "--ssd", "none")
        assert (none.code, "no SSD tier" in none.err) == (ExitCode.USAGE, True)


def test_who_looks_leaves_the_size_alone(dlcmd: Dlcmd) -> None:
    """Though the variable says another one than was said last."""
    assert dlcmd("warmup", "pets", "--ssd-size", "20MiB").code == ExitCode.OK
    assert dlcmd("warmup", "--check", "pets").code == ExitCode.OK
    assert dlcmd("cache", "pin", "pets").code == ExitCode.OK
    assert dlcmd("cache", "ls", "--json").records[-1]["budget_bytes"] == 20 * MIB
    assert dlcmd("warmup", "pets").code == ExitCode.OK
    assert dlcmd("cache", "ls", "--json").records[-1]["budget_bytes"] == 30 * MIB


def test_a_smaller_size_never_evicts_silently(
    dlcmd: Dlcmd, url: str, snapshots: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another dataset fills the tier when a warm-up asks for a smaller one."""
    with Client.connect(
        "cows", store=open_store(url), index=open_index(url), create=True, snapshot_folder=snapshots
    ) as client:
        client.put(os.urandom(12 * MIB), "cow")
    assert dlcmd("warmup", "cows").code == ExitCode.OK
    for command in (["warmup", "pets"], ["cache", "ls"]):
        told = dlcmd(*command, "--ssd-size", "10MiB")
        assert (told.code, f"`dlcmd cache resize {10 * MIB} --ssd " in told.err) == (
            ExitCode.USAGE,
            True,
        )
    monkeypatch.setenv("DIESELFS_SSD_SIZE", "10MiB")
    end_tiers()
    told = dlcmd("warmup", "pets")
    assert (told.code, "so it keeps its size" in told.err) == (ExitCode.OK, True)
    assert dlcmd("warmup", "--check", "cows").code == ExitCode.OK
    assert dlcmd("cache", "ls", "--json").records[-1]["budget_bytes"] == 30 * MIB


def test_a_mount_with_a_smaller_size_keeps_the_tier_s(
    dlcmd: Dlcmd, dataset: Path, mountpoint: Path, ssd: Path
) -> None:
    assert dlcmd("warmup", "pets").code == ExitCode.OK
    mounted = dlcmd("mount", "pets", mountpoint, "--ssd-size", "10MiB")
    assert (mounted.code, "so it keeps its size" in mounted.err) == (ExitCode.OK, True)
    assert (mountpoint / "cat/1.jpg").read_bytes() == (dataset / "cat/1.jpg").read_bytes()
    assert (ssd / "budget").read_text() == str(30 * MIB)
    assert dlcmd("umount", mountpoint).code == ExitCode.OK


def test_resize_evicts_when_it_is_told(dlcmd: Dlcmd) -> None:
    assert dlcmd("warmup", "pets").code == ExitCode.OK
    assert dlcmd("cache", "resize", "60MiB").code == ExitCode.OK  # evicts nothing
    assert dlcmd("warmup", "--check", "pets").code == ExitCode.OK
    small = dlcmd("cache", "resize", "1MiB", "--yes")
    assert (small.code, "too small" in small.err) == (ExitCode.USAGE, True)
    asked = dlcmd("cache", "resize", "10MiB")
    assert (asked.code, "pets" in asked.err) == (ExitCode.USAGE, True)
    [resized] = dlcmd("cache", "resize", "10MiB", "--yes", "--json").records
    assert (resized["former_bytes"], resized["budget_bytes"]) == (60 * MIB, 10 * MIB)
    assert dlcmd("cache", "ls", "--json").records[-1]["budget_bytes"] == 10 * MIB
    told = dlcmd("cache", "resize", "20MiB")
    assert "makes the tier larger again" in told.err  # the variable says 30 MiB


def test_resize_names_what_it_evicted(dlcmd: Dlcmd, url: str, snapshots: Path) -> None:
    with Client.connect(
        "cows", store=open_store(url), index=open_index(url), create=True, snapshot_folder=snapshots
    ) as client:
        client.put(os.urandom(16 * MIB), "cow")
    assert dlcmd("warmup", "cows").code == ExitCode.OK
    [resized] = dlcmd("cache", "resize", "10MiB", "--yes", "--json").records
    assert resized["evicted"]["cows"] >= 8 * MIB
    [listed, _] = dlcmd("cache", "ls", "--json").records
    assert listed["bytes"] <= 10 * MIB


def test_hits_are_shown(dlcmd: Dlcmd) -> None:
    assert dlcmd("warmup", "pets").code == ExitCode.OK
    assert dlcmd("cache", "ls").lines[1].split()[3:6] == ["0", "0", "-"]
    assert dlcmd("cat", "pets:readme.txt").code == ExitCode.OK

    def is_counted() -> bool:
        found.update(dlcmd("cache", "ls", "--json").records[0])
        return bool(found["hits"])

    found: dict[str, Any] = {}
    eventually(is_counted, "a hit")
    assert (found["hits"], found["misses"], found["hit_rate"]) == (1, 0, 1.0)
    assert found["hit_bytes"] >= len(FILES["readme.txt"])
    assert "100.0%" in dlcmd("cache", "ls").lines[1]


def test_warm_ups_beside_readers_are_shown(dlcmd: Dlcmd, dataset: Path, mountpoint: Path) -> None:
    assert dlcmd("cache", "ls", "-v", "--ssd-size", "30MiB").code == ExitCode.OK
    assert dlcmd("mount", "pets", mountpoint, "--ssd-warmup").code == ExitCode.OK

    def shown() -> list[dict[str, Any]]:
        records = dlcmd("cache", "ls", "-v", "--json").records
        return [record["warmup"] for record in records if "warmup" in record]

    eventually(lambda: [of["state"] for of in shown()] == ["done"], "the mount's warm-up is done")
    [warmup] = shown()
    assert (warmup["dataset"], warmup["chunks"], warmup["cached_chunks"]) == ("pets", 1, 1)
    listed = dlcmd("cache", "ls", "-v").out.decode()
    assert "warm-up of pets: done, 1 of 1 chunk" in listed
    assert "warm-up" not in dlcmd("cache", "ls").out.decode()
    assert dlcmd("umount", mountpoint).code == ExitCode.OK


def test_a_ring_alone_tells_what_it_can_t(dlcmd: Dlcmd, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DIESELFS_CACHE_CLUSTER_SECRET", "the secret of the cache cluster of a test")
    cache_cluster = ["--ssd", "none", "--cache-cluster", "127.0.0.1:1"]
    for what, hint in [("--check", "dlcmd cluster"), ("--evict", "dlcmd cache evict")]:
        told = dlcmd("warmup", what, "pets", *cache_cluster)
        assert (told.code, hint in told.err) == (ExitCode.USAGE, True)


def test_a_mount_without_its_store_reads_what_the_ssd_has(
    dlcmd: Dlcmd, dataset: Path, mountpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "none")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "none")
    [snapshot] = dlcmd("snapshot", "create", "pets").lines
    away = "s3://b/p?endpoint=http://127.0.0.1:1&region=us-east-1"
    mount = ["mount", "--no-index", "--snapshot", snapshot, "pets", mountpoint, "--store", away]
    assert dlcmd(*mount).code == ExitCode.TEMPORARY
    assert dlcmd("warmup", "pets").code == ExitCode.OK
    mounted = dlcmd(*mount)
    assert (mounted.code, "1 of 1 chunk" in mounted.err) == (ExitCode.OK, True), mounted.err
    assert (mountpoint / "cat/1.jpg").read_bytes() == (dataset / "cat/1.jpg").read_bytes()
    assert dlcmd("umount", mountpoint).code == ExitCode.OK


def test_without_a_tier_it_says_what_to_do(dlcmd: Dlcmd, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DIESELFS_SSD")
    result = dlcmd("warmup", "pets")
    assert (result.code, "--ssd FOLDER" in result.err) == (ExitCode.USAGE, True)
    monkeypatch.setenv("DIESELFS_SSD", "relative")
    assert dlcmd("warmup", "pets").code == ExitCode.USAGE


def test_an_ssd_that_can_t_be_used_is_an_error_here_and_nowhere_else(
    dlcmd: Dlcmd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("DIESELFS_SSD", str(tmp_path / "file"))
    assert dlcmd("warmup", "pets").code == ExitCode.USAGE
    got = dlcmd("cat", "pets:readme.txt")
    assert (got.code, got.out) == (ExitCode.OK, FILES["readme.txt"])


def test_a_client_reads_what_the_store_has_lost(
    tmp_path: Path, dlcmd: Dlcmd, dataset: Path
) -> None:
    """The store's chunks are gone: what comes comes from the SSD."""
    assert dlcmd("warmup", "pets").code == ExitCode.OK
    store = LocalDirectory(tmp_path / "data/dieselfs/store")
    for info in list(store.list("datasets/pets/chunks/")):
        store.delete(info.key)
        with pytest.raises(NotFound):
            store.stat(info.key)
    got = dlcmd("cat", "pets:cat/1.jpg")
    assert (got.code, got.out) == (ExitCode.OK, (dataset / "cat/1.jpg").read_bytes())


def test_mounts_share_what_one_has_read(
    dlcmd: Dlcmd, dataset: Path, mountpoint: Path, ssd: Path
) -> None:
    wanted = (dataset / "cat/1.jpg").read_bytes()

    def figures() -> dict[str, Any]:
        [record] = dlcmd("stats", "--once", "--json", mountpoint).records
        found: dict[str, Any] = record["ssd"]
        return found

    mounted = dlcmd("mount", "pets", mountpoint, "--ssd", ssd, "--ssd-size", "30MiB")
    assert mounted.code == ExitCode.OK, mounted.err
    eventually(lambda: bool(figures()["in_service"]))
    assert (mountpoint / "cat/1.jpg").read_bytes() == wanted
    eventually(lambda: figures()["written_bytes"] > len(wanted))
    assert dlcmd("umount", mountpoint).code == ExitCode.OK
    # A task of its own: the first one's memory lasts until its server has ended.
    options = f"ssd={ssd},ssd_warmup,task=second"
    assert dlcmd("mount", "pets", mountpoint, "-o", options).code == ExitCode.OK
    eventually(lambda: bool(figures()["in_service"]))
    eventually(lambda: figures()["warmup"]["state"] == "done")
    shown = dlcmd("stats", "--once", "--all", mountpoint).lines
    assert any("SSD warm-up" in line for line in shown)
    assert (mountpoint / "cat/1.jpg").read_bytes() == wanted
    found = figures()
    assert found["hits"] == 1 or found["failures"], f"the SSD may be late, then it fails: {found}"
    assert dlcmd("umount", mountpoint).code == ExitCode.OK


def test_a_mount_is_pinned_checked_shown_and_unpinned(dlcmd: Dlcmd, ssd: Path) -> None:
    size = ("--ssd-size", "30MiB")
    assert dlcmd("warmup", "--pin-mount", "--check", "pets", *size).code == ExitCode.FOUND
    [pinned] = dlcmd("warmup", "--pin-mount", "--json", "pets").records
    [blob] = map(Path, pinned["blob"])
    assert (pinned["written"], pinned["blob_bytes"]) == (1, blob.stat().st_size)
    assert blob.parent == ssd / "blobs"
    assert dlcmd("warmup", "--pin-mount", "--json", "pets").records[0]["written"] == 0
    [checked] = dlcmd("warmup", "--pin-mount", "--check", "--json", "pets").records
    assert (checked["pinned"], checked["files"], checked["damaged"]) == (True, len(FILES), [])

    [shown, tier] = dlcmd("cache", "ls", "--json").records
    assert shown["pinned_mount"]["snapshot"] == pinned["snapshot"]
    assert (shown["pinned_mount"]["bytes"], tier["used_bytes"]) == (pinned["blob_bytes"], 0)
    assert f"pinned mount: pets@{pinned['snapshot']}" in dlcmd("cache", "ls").out.decode()

    blob.chmod(0o600)
    content = blob.read_bytes()
    blob.write_bytes(content.replace(b"hello", b"hullo"))
    damaged = dlcmd("warmup", "--pin-mount", "--check", "pets")
    assert (damaged.code, "damaged: readme.txt" in damaged.lines) == (ExitCode.INTEGRITY, True)
    assert "--unpin-mount" in damaged.err

    assert "unpinned" in dlcmd("warmup", "--unpin-mount", "pets").err
    assert list(blob.parent.iterdir()) == []
    assert "no mount was pinned" in dlcmd("warmup", "--unpin-mount", "pets").err
    assert dlcmd("warmup", "--pin-mount", "pets").code == ExitCode.OK
    assert dlcmd("cache", "evict", "pets").code == ExitCode.OK
    assert list(blob.parent.iterdir()) == []


def test_a_mount_that_exceeds_the_size_is_not_pinned(
    dlcmd: Dlcmd, ssd: Path, url: str, snapshots: Path
) -> None:
    with Client.connect(
        "pets", store=open_store(url), index=open_index(url), snapshot_folder=snapshots
    ) as client:
        client.put(os.urandom(9 * MIB), "large.bin")
    refused = dlcmd("warmup", "--pin-mount", "pets", "--ssd-size", "8MiB")
    assert (refused.code, "--ssd-size" in refused.err) == (ExitCode.FAILURE, True)
    assert not (ssd / "blobs").exists()


@pytest.mark.parametrize(
    "flags",
    [
        ["--pin-mount", "--evict"],
        ["--pin-mount", "--background"],
        ["--pin-mount", "--unpin-mount"],
        ["--unpin-mount", "--check"],
    ],
)
def test_flags_that_exclude_each_other(dlcmd: Dlcmd, flags: list[str]) -> None:
    assert dlcmd("warmup", *flags, "pets").code == ExitCode.USAGE
