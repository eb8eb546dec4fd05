"""The options of a cache cluster (flags, variables, profiles), and the topic of a client's
hello."""

from __future__ import annotations

from pathlib import Path

import pytest

from chunkstore.chunk_format import DatasetRef
from dieselfs.cache.cluster.options import cache_cluster_settings, configured_cluster
from dieselfs.cache.cluster.settings import CacheClusterOptions
from dieselfs.cache.cluster.topic import CacheClusterTopic
from dieselfs.cache.ports.peer_settings import RedisLeases, StaticPeers
from dieselfs.cache.ports.runtime import PeerAddress
from dieselfs.cache.ports.secret import make_secret_file, read_secret_file
from dieselfs.config import load_config
from dieselfs.errors import UsageError

SECRET = {"DIESELFS_CACHE_CLUSTER_SECRET": "a secret of sixteen bytes"}
NODES = StaticPeers((PeerAddress("n1", 7700), PeerAddress("n2", 7701)))


@pytest.mark.parametrize("written", ["n1:7700,n2:7701", "n1:7700+n2:7701"])
def test_a_list_of_nodes(tmp_path: Path, written: str) -> None:
    found = configured_cluster(
        environment={**SECRET, "HOME": str(tmp_path), "DIESELFS_CACHE_CLUSTER": written}
    )
    assert found is not None
    assert (found.name, found.registry) == ("ring", NODES)


def test_a_ring_may_have_a_name(tmp_path: Path) -> None:
    environment = {**SECRET, "HOME": str(tmp_path), "DIESELFS_INDEX": "redis://r:1/0"}
    config = load_config(environment=environment)
    listed = cache_cluster_settings(
        CacheClusterOptions("images@n1:7700,n2:7701"), config, environment
    )
    met = cache_cluster_settings(CacheClusterOptions("redis:images"), config, environment)
    assert listed is not None
    assert met is not None
    assert (listed.name, listed.registry) == ("images", NODES)
    assert (met.name, met.registry) == ("images", RedisLeases("redis://r:1/0"))


def test_a_flag_goes_before_a_variable_and_none_turns_it_off(tmp_path: Path) -> None:
    environment = {**SECRET, "HOME": str(tmp_path), "DIESELFS_CACHE_CLUSTER": "n3:7700"}
    config = load_config(environment=environment)
    found = cache_cluster_settings(CacheClusterOptions("n1:7700,n2:7701"), config, environment)
    assert found is not None
    assert found.registry == NODES
    assert cache_cluster_settings(CacheClusterOptions("none"), config, environment) is None


def test_a_profile_says_ring_and_secret(tmp_path: Path) -> None:
    make_secret_file(tmp_path / "secret")
    (tmp_path / "dieselfs").mkdir()
    (tmp_path / "dieselfs/config.toml").write_text(
        f'profile = "p"\n[profiles.p]\nring = "n1:7700,n2:7701"\nring_secret_file = "{tmp_path}/secret"\n'
    )
    environment = {"XDG_CONFIG_HOME": str(tmp_path), "HOME": str(tmp_path)}
    found = configured_cluster(environment=environment)
    assert found is not None
    assert found.registry == NODES
    assert found.secret == read_secret_file(tmp_path / "secret")
    said = configured_cluster(environment={**environment, **SECRET})
    assert said is not None
    assert said.secret != found.secret, "what the environment says goes before"


@pytest.mark.parametrize(
    ("written", "environment", "says"),
    [
        ("n1:7700", {}, "needs a secret"),
        ("n1", SECRET, "not an address"),
        ("n1:7700,n1:7700", SECRET, "once"),
        ("a b@n1:7700", SECRET, "not a name"),
        ("redis", SECRET, "Redis of the index"),
        ("redis:a/b", {**SECRET, "DIESELFS_INDEX": "redis://r:1/0"}, "not a name"),
    ],
)
def test_what_makes_no_sense_says_so(
    tmp_path: Path, written: str, environment: dict[str, str], says: str
) -> None:
    environment = {**environment, "HOME": str(tmp_path)}
    config = load_config(environment=environment)
    with pytest.raises(UsageError, match=says):
        cache_cluster_settings(CacheClusterOptions(written), config, environment)


def test_a_secret_without_a_ring_is_a_mistake(tmp_path: Path) -> None:
    environment = {"HOME": str(tmp_path)}
    with pytest.raises(UsageError, match="needs a cache cluster"):
        cache_cluster_settings(
            CacheClusterOptions(None, "file"), load_config(environment=environment), environment
        )


@pytest.mark.parametrize(
    "topic",
    [
        CacheClusterTopic("images"),
        CacheClusterTopic("r" * 64, DatasetRef("d" * 128, bytes(range(16)))),
    ],
)
def test_a_topic_is_what_its_text_says(topic: CacheClusterTopic) -> None:
    assert CacheClusterTopic.parse(str(topic)) == topic
    assert len(str(topic)) <= 255


@pytest.mark.parametrize(
    "text",
    [
        "images",
        "ring/",
        "ring/a b",
        "ring/r/d",
        "ring/r/00/d",
        f"ring/r/{'0' * 32}/..",
        f"ring/r/{'0' * 32}/a/../../b",
        f"ring/r/{'0' * 32}/",
        f"task/r/{'0' * 32}/d",
    ],
)
def test_what_is_no_topic(text: str) -> None:
    assert CacheClusterTopic.parse(text) is None
