"""mount, umount, mounts with real daemons: which snapshot is chosen, what is refused, and that
options reach the daemon."""

import json
import os
import signal
import subprocess
import sys
from contextlib import chdir
from pathlib import Path
from typing import Any

import pytest

from dieselfs.cli.rendering.exit_codes import ExitCode
from tests.dieselfs.cli.conftest import Dlcmd
from tests.dieselfs.cli.nodes_here import task_folders
from tests.eventually import eventually
from tests.forked_programs import run_forked
from tests.mount.mounting import is_alive

pytestmark = pytest.mark.skipif(not Path("/dev/fuse").exists(), reason="needs FUSE")
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="EROFS needs root")


def listed(dlcmd: Dlcmd, mountpoint: Path) -> dict[str, Any]:
    """Return the entry of a mount in the list."""
    records = dlcmd("mounts", "--json").records
    [found] = [record for record in records if record["mountpoint"] == str(mountpoint)]
    return found


def test_mount_and_umount(dlcmd: Dlcmd, dataset: Path, mountpoint: Path) -> None:
    [snapshot] = dlcmd("snapshot", "create", "pets", "--json").records
    result = dlcmd("mount", "pets", mountpoint)
    assert (result.code, "log: " in result.err) == (0, True)
    assert (mountpoint / "cat/1.jpg").read_bytes() == b"meow" * 100
    shown = listed(dlcmd, mountpoint)
    assert (shown["dataset"], shown["snapshot"], shown["state"]) == (
        "pets",
        snapshot["id"],
        "serving",
    )
    assert dlcmd("mount", "pets", mountpoint).code == 8
    assert dlcmd("umount", mountpoint).code == 0
    assert list(mountpoint.iterdir()) == []
    assert dlcmd("umount", mountpoint).code == 1


def test_a_mount_is_listed_and_ends_though_the_configuration_has_a_mistake(
    dlcmd: Dlcmd,
    dataset: Path,
    mountpoint: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert dlcmd("mount", "pets", mountpoint).code == ExitCode.OK
    monkeypatch.setenv("DIESELFS_PROFILE", "unknown")
    assert dlcmd("ls").code == ExitCode.USAGE
    assert listed(dlcmd, mountpoint)["state"] == "serving"
    (tmp_path / "config/dieselfs").mkdir(parents=True)
    (tmp_path / "config/dieselfs/config.toml").write_text("[profiles\n")
    assert dlcmd("ls").code == ExitCode.USAGE
    assert listed(dlcmd, mountpoint)["state"] == "serving"
    assert dlcmd("umount", mountpoint).code == ExitCode.OK
    assert not mountpoint.is_mount()


@pytest.mark.parametrize("how", [[], ["--foreground"]])
def test_more_memory_than_the_machine_has_is_refused(
    dlcmd: Dlcmd, dataset: Path, mountpoint: Path, how: list[str]
) -> None:
    result = dlcmd("mount", "pets", mountpoint, "--memory", "900PiB", *how)
    assert result.code == 2
    assert "900 PiB of memory is more than this machine" in result.err
    assert "give a smaller --memory" in result.err
    assert not mountpoint.is_mount()


@pytest.mark.parametrize("how", [["--memory", "0"], ["-o", "memory=0"]])
def test_no_memory_at_all_is_refused(
    dlcmd: Dlcmd, url: str, tmp_path: Path, how: list[str]
) -> None:
    result = dlcmd("mount", "pets", tmp_path, *how)
    assert (result.code, "node memory needs a budget" in result.err) == (2, True), result.err


@as_root
def test_umount_from_inside_names_the_others_and_says_to_leave(
    dlcmd: Dlcmd, dataset: Path, mountpoint: Path
) -> None:
    assert dlcmd("mount", "pets", mountpoint).code == 0
    with chdir(mountpoint), subprocess.Popen(["sleep", "99"]) as other:
        try:
            result = dlcmd("umount", mountpoint)
        finally:
            other.kill()
    assert result.code == 8
    assert f"({other.pid})" in result.err
    assert f"({os.getpid()})" not in result.err
    assert "leave the directory first (cd /)" in result.err
    assert dlcmd("umount", mountpoint).code == 0


def test_a_stale_snapshot_is_said_and_refreshed(
    dlcmd: Dlcmd, dataset: Path, mountpoint: Path
) -> None:
    result = dlcmd("mount", "pets", mountpoint)
    assert (result.code, "making a new one" in result.err) == (0, False)  # the put has made it
    assert dlcmd("umount", mountpoint).code == 0
    (dataset / "new.jpg").write_bytes(b"new")
    assert dlcmd("put", "--no-publish", f"{dataset}/", "pets", "-j", "1").code == 0
    result = dlcmd("mount", "pets", mountpoint)
    assert (result.code, "--refresh" in result.err, result.err.count("\n")) == (8, True, 1)
    for old in (["pets@2"], ["pets", "--snapshot", "2"], ["pets", "--no-index"]):
        result = dlcmd("mount", *old, mountpoint)
        assert result.code == 0, result.err
        assert "shows generation 2 of pets, but the store is at 3" in result.err
        assert not (mountpoint / "new.jpg").exists()
        assert dlcmd("umount", mountpoint).code == 0
    assert dlcmd("mount", "pets", mountpoint, "--refresh").code == 0
    assert (mountpoint / "new.jpg").read_bytes() == b"new"
    assert dlcmd("umount", mountpoint).code == 0


@pytest.mark.parametrize(
    "how",
    [
        ["--preload", "--prefill", "0", "--cache-memory", "64MiB"],
        ["-o", "preload,store_ahead=0,cache_memory=64MiB"],
    ],
)
def test_preloading_and_storing_ahead_reach_the_daemon(
    dlcmd: Dlcmd, dataset: Path, mountpoint: Path, how: list[str]
) -> None:
    assert dlcmd("mount", "pets", mountpoint, *how).code == 0

    def statistics() -> dict[str, Any]:
        return dict(json.loads((mountpoint / ".dieselfs/stats.json").read_text()))

    def node_memory() -> dict[str, Any]:
        return dict(statistics()["cache"]["node"])

    eventually(lambda: node_memory()["cached_bytes"] > 0, "chunks in memory, none read")
    assert (mountpoint / "cat/1.jpg").read_bytes() == b"meow" * 100
    assert not any(statistics()["page_cache"]["filled"].values())
    assert node_memory()["budget_bytes"] == 64 << 20
    assert dlcmd("umount", mountpoint).code == 0


def by_itself(*arguments: str) -> subprocess.CompletedProcess[str]:
    """`dlcmd` in a process of its own, which --foreground replaces."""
    return run_forked([sys.executable, "-m", "dieselfs.cli", *arguments], env=os.environ)


def put_large(dlcmd: Dlcmd, source: Path) -> None:
    (source / "large").write_bytes(bytes(3 << 20))
    assert dlcmd("put", f"{source}/", "pets", "-j", "1").code == 0


@pytest.mark.parametrize(
    "how",
    [["--shuffle", "seed=1,group=1"], ["-o", "shuffle=seed=1:group=1"], ["--foreground"]],
    ids=lambda how: how[0],
)
def test_an_order_above_the_memory_is_refused_and_leaves_nothing(
    dlcmd: Dlcmd,
    dataset: Path,
    mountpoint: Path,
    short_folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    how: list[str],
) -> None:
    monkeypatch.setenv("DIESELFS_MEMORY_FOLDER", os.fspath(short_folder))
    put_large(dlcmd, dataset)
    order = [] if "shuffle" in " ".join(how) else ["--shuffle", "group=1"]
    command = ["mount", "pets", str(mountpoint), "--refresh", "--memory", "1MiB", *how, *order]
    done = by_itself(*command)
    assert done.returncode == 1
    assert "needs 4 MiB of memory" in done.stderr
    assert "the budget is 1 MiB" in done.stderr
    assert "raise the budget to 4 MiB" in done.stderr
    assert not mountpoint.is_mount()
    options = ["--memory", "64MiB", *(how if how != ["--foreground"] else order)]
    assert dlcmd("mount", "pets", mountpoint, *options).code == 0
    assert len((mountpoint / "large").read_bytes()) == 3 << 20

    def files_of_plan() -> int:
        return int(json.loads((mountpoint / ".dieselfs/stats.json").read_text())["plan"]["files"])

    # A mount waits for the layout of its order, but not for long.
    assert eventually(files_of_plan, "the order is followed") == 2
    assert dlcmd("umount", mountpoint).code == 0
    eventually(lambda: not task_folders(short_folder), "the end of the task's folder")


@pytest.mark.parametrize("how", ["seed=x", "group=0", "rank=2,world=2", "other=1"])
def test_an_order_that_is_none_is_refused(
    dlcmd: Dlcmd, dataset: Path, mountpoint: Path, how: str
) -> None:
    result = dlcmd("mount", "pets", mountpoint, "--shuffle", how)
    assert (result.code, "--shuffle" in result.err) == (2, True)
    assert not mountpoint.is_mount()


@pytest.mark.parametrize(
    "how", [["--task", "mine", "--eviction", "lru"], ["-o", "task=mine,eviction=lru"]]
)
def test_two_mounts_of_a_named_task_share_their_memory(
    dlcmd: Dlcmd, dataset: Path, mountpoint: Path, tmp_path: Path, how: list[str]
) -> None:
    other = tmp_path / "other"
    other.mkdir()
    for place, front in ((mountpoint, "auto"), (other, "fuse")):  # of one front they share a server
        command = ["mount", "pets", place, "--memory", "64MiB", "--front", front, *how]
        assert dlcmd(*command).code == 0
        folder = json.loads((place / ".dieselfs/dataset.json").read_text())["node_memory"]
        assert Path(folder).name == "mine"
    assert (mountpoint / "cat/1.jpg").read_bytes() == b"meow" * 100
    [record] = dlcmd("stats", "--json", other).records
    assert (record["cache"]["node"]["fetches"], record["cache"]["node"]["members"]) == (1, 2)
    for place in (mountpoint, other):
        assert dlcmd("umount", place).code == 0


@pytest.mark.parametrize("how", [["--front", "fuse"], ["-o", "front=fuse"]])
def test_a_front_can_be_asked_for(
    dlcmd: Dlcmd, dataset: Path, mountpoint: Path, how: list[str]
) -> None:
    result = dlcmd("mount", "pets", mountpoint, *how)
    assert (result.code, "front: fuse, as asked" in result.err) == (0, True)
    assert b"fuse, as asked" in dlcmd("stats", mountpoint).out
    shown = listed(dlcmd, mountpoint)
    assert shown["details"]["front"]["kind"] == "fuse" if "details" in shown else True
    assert dlcmd("umount", mountpoint).code == 0


@as_root
@pytest.mark.parametrize("front", ["erofs", "erofs-loop"])
@pytest.mark.parametrize("cache", ["buffered", "auto"])
def test_the_chosen_front_and_cache_reach_the_kernel(
    dlcmd: Dlcmd, dataset: Path, mountpoint: Path, front: str, cache: str
) -> None:
    options = ["--front", front, "--blob-cache", cache, "--json"]
    [record] = dlcmd("mount", "pets", mountpoint, *options).records
    assert record["front"] == front
    assert (mountpoint / "cat/1.jpg").read_bytes() == b"meow" * 100
    assert dlcmd("umount", mountpoint).code == 0
    assert list(mountpoint.iterdir()) == []


@pytest.mark.parametrize("front", [pytest.param("erofs", marks=as_root), "fuse"])
def test_as_many_threads_receive_as_the_user_says(
    dlcmd: Dlcmd, dataset: Path, mountpoint: Path, front: str
) -> None:
    def threads(*options: str) -> int:
        mounted = dlcmd("mount", "pets", mountpoint, "--front", front, "--prefill", "0", *options)
        assert mounted.code == 0, mounted.err
        server = json.loads((mountpoint / ".dieselfs/dataset.json").read_text())["server_pid"]
        found = len(os.listdir(f"/proc/{server}/task"))
        assert dlcmd("umount", mountpoint).code == 0
        return found

    more = threads("--threads", "40") - threads("-o", "threads=3")
    assert 30 <= more <= 44, "37, and a few threads that wait or have waited"


@pytest.mark.parametrize("how", [["--threads", "0"], ["-o", "threads=65"], ["-o", "threads=two"]])
def test_a_number_of_threads_that_is_none_is_refused(
    dlcmd: Dlcmd, dataset: Path, mountpoint: Path, how: list[str]
) -> None:
    assert dlcmd("mount", "pets", mountpoint, *how).code == 2
    assert not mountpoint.is_mount()


@pytest.mark.parametrize("how", [["--front", "fast"], ["-o", "front=fast"], ["--plain"]])
def test_a_front_that_is_none_is_refused(
    dlcmd: Dlcmd, dataset: Path, mountpoint: Path, how: list[str]
) -> None:
    assert dlcmd("mount", "pets", mountpoint, *how).code == 2
    assert not mountpoint.is_mount()


@as_root
def test_an_upgrade_replaces_the_server_under_open_files(
    dlcmd: Dlcmd, dataset: Path, mountpoint: Path
) -> None:
    [record] = dlcmd("mount", "pets", mountpoint, "--json").records
    before = json.loads((mountpoint / ".dieselfs/dataset.json").read_text())
    with open(mountpoint / "cat/1.jpg", "rb") as kept:
        result = dlcmd("mount", "--upgrade", "pets", mountpoint)
        assert (result.code, f"upgraded {mountpoint}" in result.err) == (0, True), result.err
        assert kept.read() == b"meow" * 100
    after = json.loads((mountpoint / ".dieselfs/dataset.json").read_text())
    assert after["pid"] == before["pid"] == record["pid"]
    assert after["server_pid"] != before["server_pid"]
    assert after["mounted"] == before["mounted"]
    [again] = dlcmd("mount", "--upgrade", "pets", mountpoint, "--json").records
    assert again["server_pid"] != after["server_pid"]
    assert dlcmd("umount", mountpoint).code == 0


def test_an_upgrade_without_a_mount_is_an_error(
    dlcmd: Dlcmd, dataset: Path, mountpoint: Path
) -> None:
    result = dlcmd("mount", "--upgrade", "pets", mountpoint)
    assert (result.code, "no mount serves at" in result.err) == (1, True)


@as_root
def test_a_second_mount_of_the_same_snapshot_shares_the_server(
    dlcmd: Dlcmd, dataset: Path, mountpoint: Path, tmp_path: Path
) -> None:
    other = tmp_path / "other"
    other.mkdir()
    [first] = dlcmd("mount", "pets", mountpoint, "--json").records
    result = dlcmd("mount", "pets", other)
    assert (result.code, "it shares the server of" in result.err) == (0, True)
    try:
        assert os.stat(mountpoint / "cat").st_dev == os.stat(other / "cat").st_dev
        for place in (mountpoint, other):
            assert listed(dlcmd, place)["pid"] == first["pid"]
        put_again(dlcmd, dataset, "new.jpg")
        assert dlcmd("mount", "--refresh", "pets", other).code == 0
        for place in (mountpoint, other):
            assert (place / "new.jpg").read_bytes() == b"new.jpg"
        assert dlcmd("umount", mountpoint).code == 0
        assert (other / "cat/1.jpg").read_bytes() == b"meow" * 100
        assert (other / ".dieselfs/stats.json").read_bytes()
    finally:
        assert dlcmd("umount", other).code == 0
    eventually(lambda: not is_alive(first["pid"]), "the end of the daemon")


@as_root
def test_other_options_make_a_mount_of_its_own(
    dlcmd: Dlcmd, dataset: Path, mountpoint: Path, tmp_path: Path
) -> None:
    other = tmp_path / "other"
    other.mkdir()
    [first] = dlcmd("mount", "pets", mountpoint, "--json").records
    [second] = dlcmd("mount", "pets", other, "--json", "--uid", "7").records
    assert second["pid"] != first["pid"]
    assert (os.stat(other / "cat").st_uid, os.stat(mountpoint / "cat").st_uid) == (7, os.getuid())
    for place in (other, mountpoint):
        assert dlcmd("umount", place).code == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="the kernel lets root alone change it")
def test_large_files_are_read_in_large_requests(
    dlcmd: Dlcmd, dataset: Path, mountpoint: Path
) -> None:
    (dataset / "large").write_bytes(bytes(4 << 20))
    assert dlcmd("put", f"{dataset}/", "pets", "-j", "1").code == 0
    front = ("--front", "fuse")  # before EROFS two layers ramp up one after the other: 22 requests
    assert dlcmd("mount", "pets", mountpoint, "--prefill", "0", *front).code == 0
    assert len((mountpoint / "large").read_bytes()) == 4 << 20
    stats = json.loads((mountpoint / ".dieselfs/stats.json").read_text())
    assert stats["requests"]["read"] <= 12  # 32 with the kernel's own 128 KiB
    assert dlcmd("umount", mountpoint).code == 0


def put_again(dlcmd: Dlcmd, source: Path, name: str) -> None:
    (source / name).write_bytes(name.encode())
    assert dlcmd("put", f"{source}/", "pets", "-j", "1").code == 0


def test_refresh_makes_a_running_mount_show_the_newest(
    dlcmd: Dlcmd, dataset: Path, mountpoint: Path
) -> None:
    [pid] = [r["pid"] for r in dlcmd("mount", "pets", mountpoint, "--json").records]
    with open(mountpoint / "cat/1.jpg", "rb") as kept:
        for name in ("first.jpg", "second.jpg"):
            put_again(dlcmd, dataset, name)
            result = dlcmd("mount", "pets", mountpoint)
            assert (result.code, "mount --refresh pets" in result.err) == (8, True)
            assert not (mountpoint / name).exists()
            result = dlcmd("mount", "--refresh", "pets", mountpoint)
            assert (result.code, f"refreshed {mountpoint}" in result.err) == (0, True), result.err
            assert (mountpoint / name).read_bytes() == name.encode()
        assert kept.read() == b"meow" * 100
    shown = listed(dlcmd, mountpoint)
    assert shown["pid"] == pid
    assert f"pets@{shown['snapshot']}" in os.fsdecode(dlcmd("mounts").out), "with others' paths"


def test_a_refresh_of_the_newest_says_so(dlcmd: Dlcmd, dataset: Path, mountpoint: Path) -> None:
    assert dlcmd("mount", "pets", mountpoint).code == 0
    result = dlcmd("mount", "--refresh", "pets", mountpoint)
    assert (result.code, "already shows the newest snapshot" in result.err) == (0, True)
    [record] = dlcmd("mount", "--refresh", "pets", mountpoint, "--json").records
    assert record["refreshed"] is False


def test_a_mount_of_a_named_snapshot_is_refreshed_when_asked(
    dlcmd: Dlcmd, dataset: Path, mountpoint: Path
) -> None:
    dlcmd("snapshot", "create", "pets")
    assert dlcmd("mount", "pets@2", mountpoint).code == 0
    put_again(dlcmd, dataset, "new.jpg")
    assert dlcmd("mount", "--refresh", "pets@2", mountpoint).code == 8
    assert dlcmd("mount", "--refresh", "pets", mountpoint).code == 0
    assert (mountpoint / "new.jpg").read_bytes() == b"new.jpg"


def test_a_refresh_without_an_index_pulls_what_was_published(
    dlcmd: Dlcmd, dataset: Path, snapshots: Path, mountpoint: Path
) -> None:
    assert dlcmd("mount", "pets", mountpoint).code == 0
    put_again(dlcmd, dataset, "new.jpg")
    [record] = dlcmd("snapshot", "create", "pets", "--json").records
    Path(record["file"]).unlink()
    refresh = ["mount", "--refresh", "--no-index", "--index", "redis://127.0.0.1:1"]
    assert dlcmd(*refresh, "pets", mountpoint).code == 0
    assert (mountpoint / "new.jpg").read_bytes() == b"new.jpg"


def test_a_daemon_looks_for_a_snapshot_itself(
    dlcmd: Dlcmd, dataset: Path, mountpoint: Path
) -> None:
    [pid] = [r["pid"] for r in dlcmd("mount", "pets", mountpoint, "--json").records]
    put_again(dlcmd, dataset, "new.jpg")
    [record] = dlcmd("snapshot", "create", "pets", "--json").records
    Path(record["file"]).unlink()  # it is in the store
    os.kill(pid, signal.SIGUSR1)
    eventually((mountpoint / "new.jpg").exists, "a refresh")


def test_another_dataset_is_not_refreshed(dlcmd: Dlcmd, dataset: Path, mountpoint: Path) -> None:
    assert dlcmd("mount", "pets", mountpoint).code == 0
    result = dlcmd("mount", "--refresh", "cows", mountpoint)
    assert (result.code, "pets is mounted at" in result.err) == (8, True)
    assert dlcmd("dataset", "rm", "pets", "--yes", "--force").code == 0
    put_again(dlcmd, dataset, "new.jpg")
    result = dlcmd("mount", "--refresh", "pets", mountpoint)
    assert (result.code, "is not the pets of the store" in result.err) == (8, True)
    assert not (mountpoint / "new.jpg").exists()


def test_a_refresh_that_the_daemon_refuses_is_an_error(
    dlcmd: Dlcmd, dataset: Path, mountpoint: Path
) -> None:
    assert dlcmd("mount", "pets", mountpoint).code == 0
    put_again(dlcmd, dataset, "new.jpg")
    [record] = dlcmd("snapshot", "create", "pets", "--json").records
    file = Path(record["file"])
    content = file.read_bytes()
    file.unlink()
    file.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    result = dlcmd("mount", "--refresh", "pets", mountpoint)
    assert (result.code, "was damaged" in result.err) == (ExitCode.INTEGRITY, True), result.err
    assert not (mountpoint / "new.jpg").exists()
    assert (mountpoint / "cat/1.jpg").read_bytes() == b"meow" * 100


def test_a_mount_without_an_index_pulls_the_snapshot(
    dlcmd: Dlcmd, dataset: Path, snapshots: Path, mountpoint: Path
) -> None:
    dlcmd("snapshot", "create", "pets")
    for file in snapshots.iterdir():
        file.unlink()
    assert (
        dlcmd("mount", "--no-index", "--index", "redis://127.0.0.1:1", "pets", mountpoint).code == 0
    )
    assert (mountpoint / "cat/1.jpg").exists()
    assert dlcmd("umount", mountpoint).code == 0


def test_a_snapshot_file_from_elsewhere_is_copied_and_must_be_sound(
    dlcmd: Dlcmd, dataset: Path, snapshots: Path, mountpoint: Path, tmp_path: Path
) -> None:
    [record] = dlcmd("snapshot", "create", "pets", "--json").records
    elsewhere = tmp_path / "elsewhere.snapshot"
    content = Path(record["file"]).read_bytes()
    Path(record["file"]).unlink()
    elsewhere.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    assert dlcmd("mount", "pets", mountpoint, "--snapshot", elsewhere).code == 7
    elsewhere.write_bytes(content)
    assert dlcmd("mount", "cows", mountpoint, "--snapshot", elsewhere).code == 7
    assert list(snapshots.iterdir()) == []
    assert dlcmd("mount", "pets", mountpoint, "--snapshot", elsewhere).code == 0
    [copy] = snapshots.glob("*.snapshot")
    assert copy.read_bytes() == content
    written = copy.stat()
    assert dlcmd("umount", mountpoint).code == 0
    assert dlcmd("mount", "pets", mountpoint, "--snapshot", elsewhere).code == 0
    assert copy.stat().st_ino == written.st_ino, "copied and verified once"
    assert dlcmd("umount", mountpoint).code == 0


def test_options_reach_the_daemon(dlcmd: Dlcmd, dataset: Path, mountpoint: Path) -> None:
    options = "rw,nofail,refresh,uid=1234,gid=77,cache_memory=8M"
    assert dlcmd("mount", "pets", mountpoint, "-o", options).code == 0
    status = (mountpoint / "cat").stat()
    assert (status.st_uid, status.st_gid) == (1234, 77)
    assert dlcmd("umount", mountpoint).code == 0


def test_a_foreign_store_is_noticed_before_the_mount(
    dlcmd: Dlcmd, dataset: Path, mountpoint: Path, tmp_path: Path
) -> None:
    dlcmd("snapshot", "create", "pets")
    (tmp_path / "other").mkdir()
    result = dlcmd("mount", "--no-index", "pets", mountpoint, "--store", f"file://{tmp_path}/other")
    assert (result.code, "--store" in result.err) == (1, True)


def test_foreground_ends_on_a_signal(dlcmd: Dlcmd, dataset: Path, mountpoint: Path) -> None:
    checkout = Path(__file__).parents[4]
    command = [
        sys.executable,
        "-m",
        "dieselfs.cli",
        "mount",
        "-f",
        "--refresh",
        "pets",
        str(mountpoint),
    ]
    with subprocess.Popen(
        command, cwd=checkout, env=os.environ, stderr=subprocess.PIPE, text=True
    ) as daemon:
        assert daemon.stderr is not None
        assert any("is mounted" in line for line in daemon.stderr)
        assert (mountpoint / "cat/1.jpg").exists()
        daemon.terminate()
        daemon.stderr.read()
    assert daemon.returncode == 0
    assert list(mountpoint.iterdir()) == []
