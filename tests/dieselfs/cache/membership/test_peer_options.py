"""How a node takes part, from flags, -o options and variables; and what is refused, with a hint
that says what to write."""

from dataclasses import replace
from pathlib import Path

import pytest

from dieselfs.cache.membership.peer_options import (
    PeerOptions,
    from_environment,
    options_in,
    peer_settings,
)
from dieselfs.cache.ports.peer_settings import (
    LOOPBACK,
    PeerSettings,
    RankZero,
    RedisLeases,
    StaticPeers,
)
from dieselfs.cache.ports.runtime import PeerAddress
from dieselfs.config import Setting
from dieselfs.errors import ConfigError, UsageError

SECRET = "not so secret, but long enough"
REDIS = Setting("redis://:hidden@10.9.9.9:6379/0", "$DIESELFS_INDEX")
TORCHRUN = {
    "MASTER_ADDR": "node0",
    "MASTER_PORT": "29400",
    "GROUP_RANK": "1",
    "GROUP_WORLD_SIZE": "3",
    "RANK": "9",
    "WORLD_SIZE": "24",
    "LOCAL_WORLD_SIZE": "8",
}


def settings(
    options: PeerOptions,
    task: str | None = "run1",
    index: Setting | None = REDIS,
    environment: dict[str, str] | None = None,
    own: str = "10.0.0.1",
) -> PeerSettings:
    """As on a node whose only address is `own`."""
    found = peer_settings(
        options,
        task,
        index,
        {"DIESELFS_TASK_SECRET": SECRET, **(environment or {})},
        is_own=lambda host: host in (own, "127.0.0.1"),
        own_towards=lambda host: None if host == "nowhere" else own,
    )
    assert found is not None
    return found


def test_redis() -> None:
    found = settings(PeerOptions("redis", nodes=3, cache_policy="oneshot", name="a"))
    assert found.registry == RedisLeases(REDIS.value)
    assert (found.task, found.listen, found.advertise) == ("run1", LOOPBACK, None)
    assert (found.nodes, found.cache_policy, found.member) == (3, "oneshot", "a")
    assert found.gives_memory
    assert found.secret.value == SECRET.encode()


def test_nothing_of_a_secret_is_shown() -> None:
    text = repr(settings(PeerOptions("redis")))
    assert SECRET not in text
    assert "hidden" not in text


def test_without_peers_there_is_nothing() -> None:
    assert peer_settings(PeerOptions(), None, None, {}) is None
    assert peer_settings(PeerOptions("none", listen="0.0.0.0"), None, None, {}) is None
    assert from_environment({"DIESELFS_TASK": "run1", "DIESELFS_TASK_SECRET": SECRET}) is None


@pytest.mark.parametrize(
    ("listen", "expected"),
    [
        ("10.0.0.1", PeerAddress("10.0.0.1", 0)),
        ("10.0.0.1:7400", PeerAddress("10.0.0.1", 7400)),
        ("[fd00::1]:7400", PeerAddress("fd00::1", 7400)),
        ("[fd00::1]", PeerAddress("fd00::1", 0)),
        ("fd00::1", PeerAddress("fd00::1", 0)),
        ("node1.cluster", PeerAddress("node1.cluster", 0)),
    ],
)
def test_where_it_listens(listen: str, expected: PeerAddress) -> None:
    assert settings(PeerOptions("redis", listen=listen)).listen == expected


def test_what_a_wildcard_advertises() -> None:
    found = settings(PeerOptions("redis", listen="0.0.0.0"))
    assert (found.listen, found.advertise) == (PeerAddress("0.0.0.0", 0), "10.0.0.1")
    told = PeerOptions("redis", listen="[::]:7400", advertise="node1")
    assert settings(told).advertise == "node1"
    with pytest.raises(UsageError) as caught:
        settings(PeerOptions("redis", listen="0.0.0.0"), own="127.0.0.1")
    assert "--peer-advertise" in str(caught.value.hint)
    with pytest.raises(UsageError):
        settings(
            PeerOptions("redis", listen="0.0.0.0"), index=Setting("redis://nowhere", "--index")
        )


THREE = "10.0.0.1:7400,10.0.0.2:7400,10.0.0.3:7400"
ON_ONE_MACHINE = "127.0.0.1:7401,127.0.0.1:7402"


@pytest.mark.parametrize(
    ("options", "own", "listen"),
    [
        (PeerOptions(THREE), "10.0.0.2", PeerAddress("10.0.0.2", 7400)),
        (PeerOptions(THREE.replace(",", "+")), "10.0.0.2", PeerAddress("10.0.0.2", 7400)),
        (PeerOptions(THREE, listen="0.0.0.0"), "10.0.0.2", PeerAddress("0.0.0.0", 7400)),
        (PeerOptions(THREE, advertise="10.0.0.3"), "10.9.9.9", PeerAddress("10.0.0.3", 7400)),
        (
            PeerOptions(THREE, listen="10.1.1.1", advertise="10.0.0.3"),
            "10.1.1.1",
            PeerAddress("10.1.1.1", 7400),
        ),
        (
            PeerOptions(ON_ONE_MACHINE, listen="127.0.0.1:7402"),
            "10.0.0.1",
            PeerAddress("127.0.0.1", 7402),
        ),
        (
            PeerOptions(ON_ONE_MACHINE, listen="0.0.0.0:7401"),
            "10.0.0.1",
            PeerAddress("0.0.0.0", 7401),
        ),
    ],
)
def test_the_own_entry_of_a_list(options: PeerOptions, own: str, listen: PeerAddress) -> None:
    found = settings(options, own=own, index=None)
    assert isinstance(found.registry, StaticPeers)
    assert found.listen == listen
    assert PeerAddress(str(found.advertise), listen.port) in found.registry.addresses
    assert found.nodes == len(found.registry.addresses)


@pytest.mark.parametrize(
    ("options", "own"),
    [
        (PeerOptions(THREE), "10.9.9.9"),
        (PeerOptions(ON_ONE_MACHINE), "10.0.0.1"),
        (PeerOptions(THREE, listen="10.0.0.2:7499"), "10.0.0.2"),
        (PeerOptions(THREE, advertise="10.0.0.4"), "10.0.0.1"),
    ],
)
def test_a_list_without_one_own_entry_is_refused(options: PeerOptions, own: str) -> None:
    with pytest.raises(UsageError) as caught:
        settings(options, own=own)
    assert "--peer-listen HOST:PORT" in str(caught.value.hint)


def test_torch() -> None:
    others = settings(PeerOptions("torch", listen="0.0.0.0"), environment=TORCHRUN)
    assert others.registry == RankZero(PeerAddress("node0", 29500), 1, 3)
    assert (others.listen, others.nodes) == (PeerAddress("0.0.0.0", 0), 3)
    assert others.advertise == "10.0.0.1"
    zero = settings(
        PeerOptions("torch:7400", listen="0.0.0.0"), environment={**TORCHRUN, "GROUP_RANK": "0"}
    )
    assert zero.registry == RankZero(PeerAddress("node0", 7400), 0, 3)
    assert zero.listen == PeerAddress("0.0.0.0", 7400)


@pytest.mark.parametrize(
    ("environment", "node", "nodes"),
    [
        ({"NODE_RANK": "2", "NNODES": "4"}, 2, 4),
        ({"SLURM_NODEID": "0", "SLURM_NNODES": "2"}, 0, 2),
        ({"RANK": "17", "WORLD_SIZE": "24", "LOCAL_WORLD_SIZE": "8"}, 2, 3),
    ],
)
def test_other_launchers(environment: dict[str, str], node: int, nodes: int) -> None:
    local = {"MASTER_ADDR": "127.0.0.1", **environment}
    found = settings(PeerOptions("torch"), environment=local).registry
    assert found == RankZero(PeerAddress("127.0.0.1", 29600), node, nodes)


def test_the_last_ports_are_ports_too() -> None:
    near = {"MASTER_ADDR": "localhost", "MASTER_PORT": "65500", "NODE_RANK": "0", "NNODES": "1"}
    assert settings(PeerOptions("torch"), environment=near).listen.port == 65400


@pytest.mark.parametrize(
    ("options", "environment", "hint"),
    [
        (PeerOptions("torch", listen="0.0.0.0"), {}, "torchrun"),
        (PeerOptions("torch", listen="0.0.0.0"), {"MASTER_ADDR": "node0"}, "NODE_RANK"),
        (PeerOptions("torch"), TORCHRUN, "--peer-listen"),
        (PeerOptions("torch:x"), TORCHRUN, "torch:PORT"),
        (PeerOptions("torch", listen="0.0.0.0:7"), {**TORCHRUN, "GROUP_RANK": "0"}, "torch:7"),
        (PeerOptions("red"), {}, "HOST:PORT"),
        (PeerOptions("10.0.0.1"), {}, "HOST:PORT"),
        (PeerOptions("10.0.0.1:99999"), {}, "HOST:PORT"),
        (PeerOptions("10.0.0.1:1,10..0.2:1"), {}, "HOST:PORT"),
        (PeerOptions("0.0.0.0:1,10.0.0.2:1", listen="0.0.0.0:1"), {}, "--peer-listen"),
        (PeerOptions(THREE, name="me"), {}, "leave the option out"),
        (PeerOptions("torch", listen="0.0.0.0", name="me"), TORCHRUN, "leave the option out"),
        (PeerOptions(THREE, no_share=True), {}, "--peers redis"),
        (PeerOptions("redis", name="two words"), {}, "printable"),
        (PeerOptions("redis", listen="10.0.0.1:x"), {}, "HOST:PORT"),
        (PeerOptions("redis", advertise="0.0.0.0"), {}, "without a port"),
        (PeerOptions("redis", advertise="node1:7400"), {}, "without a port"),
        (PeerOptions("redis", cache_policy="never"), {}, "oneshot or on-demand"),
        (PeerOptions(listen="10.0.0.1"), {}, "--peers redis"),
    ],
)
def test_what_makes_no_sense_is_refused(
    options: PeerOptions, environment: dict[str, str], hint: str
) -> None:
    with pytest.raises(UsageError) as caught:
        settings(options, environment=environment)
    assert hint in str(caught.value.hint)


def test_a_task_must_be_named() -> None:
    with pytest.raises(UsageError) as caught:
        settings(PeerOptions("redis"), task=None)
    assert "--task" in str(caught.value.hint)


@pytest.mark.parametrize("index", [None, Setting("lmdb:///there", "default")])
def test_redis_must_be_the_index(index: Setting | None) -> None:
    with pytest.raises(ConfigError) as caught:
        settings(PeerOptions("redis"), index=index)
    assert "DIESELFS_INDEX" in str(caught.value.hint)


def test_a_missing_secret_says_how_to_make_one() -> None:
    with pytest.raises(UsageError) as caught:
        settings(PeerOptions("redis"), environment={"DIESELFS_TASK_SECRET": ""})
    assert "dlcmd task secret FILE" in str(caught.value.hint)


def test_the_secrets_file_goes_before_the_variable(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_text("another that is long enough")
    file.chmod(0o600)
    found = settings(PeerOptions("redis", secret_file=str(file)))
    assert found.secret.value == b"another that is long enough"


VARIABLES = {
    "DIESELFS_PEERS": "redis",
    "DIESELFS_INDEX": "redis://10.9.9.9",
    "DIESELFS_TASK": "run1",
    "DIESELFS_TASK_SECRET": SECRET,
    "DIESELFS_PEER_LISTEN": "10.0.0.1:7400",
    "DIESELFS_PEER_ADVERTISE": "node1",
    "DIESELFS_PEER_NAME": "first",
    "DIESELFS_PEER_NODES": "3",
    "DIESELFS_CACHE_POLICY": "oneshot",
    "DIESELFS_NO_SHARE": "1",
    "HOME": "/nonexistent",
}


def test_training_code_needs_no_change() -> None:
    found = from_environment(VARIABLES)
    assert found is not None
    assert found.registry == RedisLeases("redis://10.9.9.9")
    assert (found.task, found.listen) == ("run1", PeerAddress("10.0.0.1", 7400))
    assert (found.advertise, found.member, found.nodes) == ("node1", "first", 3)
    assert (found.cache_policy, found.gives_memory) == ("oneshot", False)
    other = from_environment(VARIABLES, task="validation")
    assert other is not None
    assert other.task == "validation"


def test_what_is_said_goes_before_the_variables() -> None:
    said = PeerOptions("torch", listen="10.0.0.2", nodes=2).otherwise(options_in(VARIABLES))
    assert (said.peers, said.listen, said.nodes) == ("torch", "10.0.0.2", 2)
    assert (said.name, said.no_share) == ("first", True)
    assert replace(said, no_share=False).otherwise(options_in(VARIABLES)).no_share is False
    with pytest.raises(UsageError):
        options_in({"DIESELFS_PEER_NODES": "many"})
