from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from chunkstore.chunk_id import ChunkId
from dieselfs.cache.membership.membership import TaskMembership
from dieselfs.cache.membership.placement import reachable
from dieselfs.cache.membership.redis_registry import RedisRegistry
from dieselfs.cache.membership.registries import members_to_keep, open_registry, own_id, own_member
from dieselfs.cache.membership.registry import StaticRegistry
from dieselfs.cache.membership.view_file import ViewFile
from dieselfs.cache.ports.block import CacheBlock
from dieselfs.cache.ports.cached_chunks import NodeStatus
from dieselfs.cache.ports.members import Member
from dieselfs.cache.ports.peer_settings import PeerSettings, RankZero, RedisLeases, StaticPeers
from dieselfs.cache.ports.runtime import PeerAddress
from dieselfs.cache.ports.secret import TaskSecret
from dieselfs.cache.wire.os_runtime import OperatingSystem
from dieselfs.cache.wire.peer_client import PeerClient
from dieselfs.cache.wire.peer_server import PeerServer
from dieselfs.errors import ConfigError, UsageError
from tests.eventually import PATIENCE_S, eventually
from tests.services.redis_processes import free_port

SECRET = TaskSecret(b"0123456789abcdef")
REDIS = PeerSettings("task", SECRET, RedisLeases("redis://:s3cret@127.0.0.1:1/0"))
HERE = PeerAddress("10.0.0.1", 7000)
LIST = replace(REDIS, registry=StaticPeers((HERE, PeerAddress("10.0.0.2", 7000))))
RANKS = replace(REDIS, registry=RankZero(HERE, 1, 2))


class Nothing:
    """Implements `CachedChunks`, with nothing held."""

    def payload(self, chunk: ChunkId) -> memoryview | None:
        return None

    def head(self, chunk: ChunkId) -> memoryview | None:
        return None

    def block(self, block: CacheBlock) -> memoryview | None:
        return None

    def is_loading(self, block: CacheBlock) -> bool:
        return False

    def load(self, block: CacheBlock) -> None:
        raise NotImplementedError

    def status(self) -> NodeStatus:
        return NodeStatus(budget_bytes=7 << 20)


@dataclass(frozen=True, slots=True)
class Node:
    me: Member
    membership: TaskMembership
    board: ViewFile


@contextmanager
def node(settings: PeerSettings, folder: Path) -> Iterator[Node]:
    """A master without memory, over real sockets."""
    folder.mkdir(exist_ok=True)
    runtime, member_list = OperatingSystem(), None
    id = own_id(settings, settings.listen)
    member_list = members_to_keep(settings, runtime.now)
    server = PeerServer(runtime, SECRET, "task", id, settings.listen, Nothing(), member_list)
    client = PeerClient(runtime, SECRET, "task", id)
    me = own_member(settings, server.address, 7 << 20, id)
    registry = open_registry(settings, client, member_list)
    membership = TaskMembership(runtime, registry, client, me, ViewFile(folder))
    membership.start()
    try:
        yield Node(me, membership, ViewFile(folder))
    finally:
        membership.close(PATIENCE_S)
        client.close()
        server.close(PATIENCE_S)


def test_names_of_nodes() -> None:
    assert own_id(REDIS, HERE) == "10.0.0.1"
    assert own_id(replace(REDIS, member="gpu-7"), HERE) == "gpu-7"
    assert own_id(replace(REDIS, advertise="gpu-7.cluster"), HERE) == "gpu-7.cluster"
    assert own_id(REDIS, PeerAddress("127.0.0.1", 7000)) == "127.0.0.1:7000"
    assert own_id(REDIS, PeerAddress("::1", 7000)) == "[::1]:7000"
    assert own_id(LIST, HERE) == "10.0.0.1:7000"
    assert own_id(RANKS, HERE) == "rank-1"


def test_names_that_do_not_work() -> None:
    with pytest.raises(UsageError, match="cannot be a member's name"):
        own_id(replace(REDIS, advertise="h" * 80), HERE)
    with pytest.raises(UsageError, match="named by their rank"):
        own_id(replace(RANKS, member="gpu-7"), HERE)
    with pytest.raises(UsageError, match=r"10\.0\.0\.3:7000 is not in the list"):
        own_id(LIST, PeerAddress("10.0.0.3", 7000))
    with pytest.raises(UsageError, match="gpu-7 is not in the list"):
        own_id(replace(LIST, member="gpu-7"), HERE)
    with pytest.raises(UsageError, match=r"cannot connect to 0\.0\.0\.0"):
        own_id(REDIS, PeerAddress("0.0.0.0", 7000))


def test_what_a_node_says_of_itself() -> None:
    assert own_member(REDIS, HERE, 5 << 30, "gpu-7\n") == Member("10.0.0.1", HERE, 5120, "gpu-7")
    assert own_member(REDIS, HERE, 1000, "").weight == 1
    assert own_member(replace(REDIS, gives_memory=False), HERE, 5 << 30, "").weight == 0
    behind = replace(REDIS, advertise="gpu-7")
    assert own_member(behind, PeerAddress("0.0.0.0", 7000), 1, "").address == PeerAddress(
        "gpu-7", 7000
    )
    assert own_member(LIST, HERE, 5 << 30, "") == Member("10.0.0.1:7000", HERE, 1)
    with pytest.raises(UsageError, match="gives each node a share"):
        own_member(replace(LIST, gives_memory=False), HERE, 5 << 30, "")
    assert own_member(REDIS, HERE, 1, "ü" * 300).node == "ü" * 127


def test_which_directory() -> None:
    client = PeerClient(OperatingSystem(), SECRET, "task", "me")
    assert isinstance(open_registry(REDIS, client), RedisRegistry)
    assert isinstance(open_registry(LIST, client), StaticRegistry)
    wrong = replace(REDIS, registry=RedisLeases("redis://user:s3cret@h:port"))
    with pytest.raises(ConfigError, match="not a Redis address") as caught:
        open_registry(wrong, client)
    assert "s3cret" not in str(caught.value)
    assert members_to_keep(REDIS, lambda: 0.0) is None
    assert members_to_keep(RANKS, lambda: 0.0) is None


def settings_of_ranks(count: int) -> list[PeerSettings]:
    zero = PeerAddress("127.0.0.1", free_port())
    listens = [zero, *(PeerAddress("127.0.0.1", free_port()) for _ in range(count - 1))]
    return [
        replace(REDIS, registry=RankZero(zero, rank, count), listen=listen)
        for rank, listen in enumerate(listens)
    ]


@pytest.mark.usefixtures("patience")
def test_nodes_of_a_job_over_real_sockets_without_rank_zero_for_a_while(tmp_path: Path) -> None:
    settings = settings_of_ranks(3)
    with ExitStack() as stack:
        others = [
            stack.enter_context(node(settings[number], tmp_path / str(number))) for number in (1, 2)
        ]
        with node(settings[0], tmp_path / "0") as zero:
            for one in (zero, *others):
                assert one.membership.settled(3, PATIENCE_S)
                assert [member.id for member in reachable(one.membership.view)] == [
                    "rank-0",
                    "rank-1",
                    "rank-2",
                ]
            assert zero.membership.statuses()["rank-1"].budget_bytes == 7 << 20
            eventually(lambda: zero.board.current() is not None, "a view")
        assert ViewFile(tmp_path / "0").current() is None
        for one in others:
            eventually(
                lambda one=one: (
                    [member.id for member in reachable(one.membership.view)] == ["rank-1", "rank-2"]
                ),
                "node 0 is missed",
            )
        with node(settings[0], tmp_path / "0") as zero:
            assert all(one.membership.settled(3, PATIENCE_S) for one in [zero, *others])
