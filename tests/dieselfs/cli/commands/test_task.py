"""`dlcmd task`, and mounts with peers: what is refused, what reaches the daemon, and that the
secret is seen nowhere.

Two nodes are two folders for memory on one machine, and two mounts.
"""

import json
import os
import re
import signal
import socket
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from tests.dieselfs.cli.conftest import Dlcmd
from tests.dieselfs.cli.nodes_here import TASK, Daemon, NodeHere, nodes_here
from tests.eventually import PATIENCE_S, eventually, scaled_by_load
from tests.forked_programs import PATIENT, start_forked

needs_fuse = pytest.mark.skipif(not Path("/dev/fuse").exists(), reason="needs FUSE")
SECRET = "f00d" * 16
Hold = Callable[[], int]
"""Returns a port of 127.0.0.1 that nobody else takes until the end of the test."""


def test_a_secret_is_made_once(dlcmd: Dlcmd, tmp_path: Path) -> None:
    file = tmp_path / "run1.secret"
    result = dlcmd("task", "secret", file)
    assert (result.code, result.out) == (0, b"")
    assert f"--secret-file {file}" in result.err
    made = file.read_text()
    assert re.fullmatch(r"[0-9a-f]{64}\n", made)
    assert file.stat().st_mode & 0o777 == 0o600
    assert made.strip() not in result.err
    assert dlcmd("task", "secret", file).code == 8
    assert file.read_text() == made
    [record] = dlcmd("task", "secret", tmp_path / "other", "--json").records
    assert record == {"file": str(tmp_path / "other")}
    assert dlcmd("task", "secret", tmp_path / "no" / "folder").code == 1


@pytest.mark.parametrize("name", ["unknown", "..", "a/b"])
def test_a_task_that_is_not_here(dlcmd: Dlcmd, name: str) -> None:
    result = dlcmd("task", "show", name)
    assert (result.code, "`dlcmd task ls`" in result.err) == (1, True)


@pytest.mark.parametrize(
    ("flags", "environment", "said"),
    [
        (["--peers", "redis"], {}, "--task"),
        (["--peers", "redis", "--task", TASK], {}, "DIESELFS_INDEX"),
        (["--peers", "localhost:1", "--task", TASK], {}, "dlcmd task secret FILE"),
        (["-o", "peers=localhost:1+localhost:1", "--task", TASK], {}, "once"),
        (["--peer-nodes", "2"], {}, "--peers redis"),
        (["-o", "no_share"], {}, "--peers redis"),
        (["-o", f"peers=torch,task={TASK}"], {}, "torchrun"),
        (["-o", f"peers=redis,task={TASK},cache_policy=never"], {}, "oneshot or on-demand"),
        (["-o", f"peers=redis,task={TASK},peer_nodes=x"], {}, "not a number"),
        (["--task", TASK], {"DIESELFS_PEERS": "localhost:1"}, "dlcmd task secret FILE"),
        ([], {"DIESELFS_PEERS": "redis"}, "--task"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_a_mount_with_wrong_options_is_refused_in_the_terminal(
    dlcmd: Dlcmd,
    dataset: Path,
    mountpoint: Path,
    monkeypatch: pytest.MonkeyPatch,
    flags: list[str],
    environment: dict[str, str],
    said: str,
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    result = dlcmd("mount", "pets", mountpoint, *flags)
    assert (result.code, result.err.count("\n")) == (2, 1)
    assert said in result.err
    assert not mountpoint.is_mount()


@pytest.fixture
def nodes(dlcmd: Dlcmd, pictures: Path, tmp_path: Path) -> Iterator[list[NodeHere]]:
    """Two, whose mounts are gone afterwards."""
    with nodes_here(dlcmd, tmp_path, 2) as made:
        yield made


@pytest.fixture
def secret_file(tmp_path: Path) -> Path:
    file = tmp_path / "secret"
    file.touch(mode=0o600)
    file.write_text(SECRET)
    return file


@pytest.fixture
def hold() -> Iterator[Hold]:
    """A server binds its port long after a test has chosen it. So a socket that never listens is
    bound to it, beside which only those that ask for this port may be."""
    with ExitStack() as held:

        def hold() -> int:
            holder = held.enter_context(socket.socket())
            holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            holder.bind(("127.0.0.1", 0))
            return int(holder.getsockname()[1])

        yield hold


def read_all(source: Path, mountpoint: Path) -> None:
    """In one order on each disk: it decides which files the kernel reads ahead."""
    for file in sorted(source.rglob("*.jpg")):
        assert (mountpoint / file.relative_to(source)).read_bytes() == file.read_bytes()


def every_word(daemons: Sequence[Daemon]) -> bytes:
    """Arguments, and all that was logged."""
    arguments = [Path(f"/proc/{daemon.pid}/cmdline").read_bytes() for daemon in daemons]
    return b"\n".join([*arguments, *(daemon.log.read_bytes() for daemon in daemons)])


def says(node: NodeHere, pattern: str, *arguments: str | Path) -> None:
    """Sooner or later: a machine that stalls makes a peer look silent."""
    eventually(lambda: re.search(pattern, node(*arguments).out.decode()), pattern)


def start_by_list(nodes: list[NodeHere], secret_file: Path, url: str, hold: Hold) -> list[Daemon]:
    """One is told by flags, the other by -o options and a variable."""
    one, two = (f"127.0.0.1:{hold()}" for _ in nodes)
    nodes[1].environment["DIESELFS_TASK_SECRET"] = SECRET
    flags = ["--peers", f"{one},{two}", "--peer-listen", one, "--secret-file", str(secret_file)]
    options = f"peers={one}+{two},peer_listen={two}"
    return [nodes[0].mount(*flags), nodes[1].mount("-o", options)]


def start_by_redis(nodes: list[NodeHere], secret_file: Path, url: str, hold: Hold) -> list[Daemon]:
    flags = ["--index", url, "--peers", "redis", "--secret-file", str(secret_file)]
    return [node.mount(*flags, "--peer-name", f"n{n}") for n, node in enumerate(nodes)]


def start_by_rank(nodes: list[NodeHere], secret_file: Path, url: str, hold: Hold) -> list[Daemon]:
    """Variables alone say it."""
    for rank, node in enumerate(nodes):
        node.environment.update(
            DIESELFS_PEERS="torch",
            DIESELFS_TASK_SECRET_FILE=str(secret_file),
            MASTER_ADDR="127.0.0.1",
            NODE_RANK=str(rank),
            NNODES="2",
        )
    port = str(hold() - 100)
    for node in nodes:
        node.environment["MASTER_PORT"] = port
    return [node.mount() for node in nodes]


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


@needs_fuse
@pytest.mark.parametrize("start", [start_by_list, start_by_redis, start_by_rank])
def test_two_mounts_put_their_memory_together(
    nodes: list[NodeHere],
    pictures: Path,
    secret_file: Path,
    redis_url: str,
    hold: Hold,
    start: Callable[[list[NodeHere], Path, str, Hold], list[Daemon]],
) -> None:
    for node in nodes:
        node.environment[PATIENT] = "1"  # a peer that a busy machine makes late is not silent
    daemons = start(nodes, secret_file, redis_url, hold)
    for node in nodes:
        eventually(lambda node=node: node.show()["peers"]["members_up"] == 2, "two members")
    for node in nodes:
        read_all(pictures, node.mountpoint)
    secret_file.unlink()
    for node in nodes:  # a mount that does not answer in time names no dataset
        eventually(lambda node=node: node.show()["dataset"] == "pets", "its dataset")
    first, second = (node.show() for node in nodes)
    leaders = [record["leader_pid"] for record in (first, second)]
    assert [parent_of(pid) for pid in leaders] == [d.pid for d in daemons]  # a server leads
    content = nodes[0].statistics()["cache"]["node"]["fetched_bytes"]
    assert content > 150 * 5000, "what the kernel reads ahead may come without its chunk"

    def from_store() -> int:
        shown = [node.show()["members"] for node in nodes]
        own = [next(m for m in members if m["state"] == "me") for members in shown]
        return sum(member["status"]["from_store_bytes"] for member in own)

    # Once, but for a few reads; each alone would read twice as much.
    assert from_store() <= 1.5 * content
    for node in nodes:
        found = node.statistics()["peers"]
        assert found["sources"]["from_peers"] > 0
        assert 0 < found["node_store_bytes_per_byte"] < 1
        says(node, r"peers +2 of 2 up", "stats", "--once", node.mountpoint)
        says(node, rf"{TASK} +pets +\d+ +1 .* +2 of 2", "task", "ls")
    says(nodes[0], "2 of 2 members up", "task", "show", TASK)
    text = nodes[0]("task", "show", TASK).out
    seen = every_word(daemons)
    seen += text + json.dumps([first, second, nodes[0].statistics()]).encode()
    assert SECRET.encode() not in seen
    assert b"--task" in seen
    for node in nodes:
        assert node.umount() < scaled_by_load(40)


@needs_fuse
def test_a_mount_whose_peers_never_answer_works(
    nodes: list[NodeHere], pictures: Path, secret_file: Path, hold: Hold
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        other = f"127.0.0.1:{silent.getsockname()[1]}"
        own = f"127.0.0.1:{hold()}"
        node = nodes[0]
        node.mount(
            *("--peers", f"{own},{other}", "--peer-listen", own),
            *("--secret-file", str(secret_file), "--cache-policy", "oneshot"),
        )
        read_all(pictures, node.mountpoint)
        found = node.show()
        states = {member["id"]: member["state"] for member in found["members"]}
        assert states[own] == "me"
        assert states[other] in ("silent", "open")
        assert found["peers"]["members_up"] == 1
        assert found["peers"]["filling"] is not None
        assert node.umount() < scaled_by_load(40)


@needs_fuse
def test_oneshot_fetches_what_a_refresh_brings(
    nodes: list[NodeHere], pictures: Path, secret_file: Path, hold: Hold
) -> None:
    node, own = nodes[0], f"127.0.0.1:{hold()}"
    flags = ["--peers", own, "--secret-file", str(secret_file), "--cache-policy", "oneshot"]
    node.mount("--peer-listen", own, *flags)

    def filled() -> int:
        """Bytes of the whole share, if it is held."""
        peers = node.statistics()["peers"]  # none while one server follows another
        filling = peers["filling"] if peers else {"done": False}
        return int(filling["cached_bytes"]) if filling["done"] else 0

    eventually(filled, "a share in memory that nobody has read")
    before = filled()
    (pictures / "new.jpg").write_bytes(bytes(10_000))
    node("put", f"{pictures}/", "pets", "-j", "1")
    node("mount", "--refresh", "pets", node.mountpoint)
    # While one server follows another there may be no answer.
    brought = "the new file in memory"
    eventually(lambda: filled() >= before + 10_000, brought, ignored=(OSError, ValueError))
    node.umount()


@needs_fuse
def test_a_node_that_takes_no_part_says_why(
    nodes: list[NodeHere], pictures: Path, secret_file: Path
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        own = f"127.0.0.1:{other.getsockname()[1]}"
        node = nodes[0]
        node.mount("--peers", own, "--peer-listen", own, "--secret-file", str(secret_file))
        read_all(pictures, node.mountpoint)
        eventually(lambda: node.show()["peers"]["trouble"], "what is wrong")
        assert own in node.show()["peers"]["trouble"]
        assert b"takes no part: " in node("task", "show", TASK).out
        assert b"; " in node("stats", node.mountpoint).out
        node.umount()


@needs_fuse
def test_peers_of_a_task_that_was_started_without(
    nodes: list[NodeHere], pictures: Path, secret_file: Path, hold: Hold
) -> None:
    """Who leads decides; who comes later is told in the log."""
    node = nodes[0]
    node.mount()
    second = replace(node, mountpoint=nodes[1].mountpoint)
    own = f"127.0.0.1:{hold()}"
    daemon = second.mount("--peers", own, "--peer-listen", own, "--secret-file", str(secret_file))
    read_all(pictures, second.mountpoint)
    assert node.show()["peers"] is None
    assert b"started without --peers" in node("task", "show", TASK).out
    assert second.statistics()["peers"] is None
    assert "which has no peers" in daemon.log.read_text()
    second("umount", second.mountpoint)
    looks_again_until_interrupted(node)
    node.umount()
    assert node("task", "ls").out == b""


def looks_again_until_interrupted(node: NodeHere) -> None:
    command = [sys.executable, "-m", "dieselfs.cli", "task", "show", TASK, "--refresh", "0.1"]
    environment = {**os.environ, "DIESELFS_MEMORY_FOLDER": str(node.memory), PATIENT: "1"}
    with start_forked([*command, "--json"], env=environment) as looking:
        try:
            found = [json.loads(looking.stdout.readline()) for _ in range(3)]
            looking.send_signal(signal.SIGINT)
            looking.wait(PATIENCE_S)
        finally:
            looking.kill()
    assert looking.returncode == 0
    assert {record["task"] for record in found} == {TASK}
