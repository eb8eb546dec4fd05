"""The settings in a store as a node reads them: precedence, requests, and what cannot be read."""

from __future__ import annotations

from pathlib import Path

import pytest

import dieselfs
from chunkstore.errors import Corrupt, Denied, Unavailable
from chunkstore.object_keys import settings_key
from chunkstore.store_settings import StoreSettings, change
from chunkstore.stores.local_directory import LocalDirectory
from chunkstore.stores.memory import MemoryObjectStore
from dieselfs.assembly import open_store
from dieselfs.cache.ssd.settings import end_tiers
from dieselfs.config import SHARED_KEYS, Config, load_config
from dieselfs.config.shared import stored
from dieselfs.config.shared.changes import set_shared, unset_shared
from dieselfs.config.shared.stored import completed_config
from dieselfs.config.shared.values import _CHECKS
from dieselfs.errors import ConfigError
from metadata.errors import DatasetNotFound
from tests.chunkstore.packed import CountingStore, StoreWrapper


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for key in ("store", "profile", "index_login", *SHARED_KEYS):
        monkeypatch.delenv(f"DIESELFS_{key.upper()}", raising=False)
    for name in ("XDG_DATA_HOME", "XDG_CACHE_HOME", "XDG_CONFIG_HOME"):
        monkeypatch.setenv(name, str(tmp_path / name))
    stored._warn.cache_clear()


@pytest.fixture
def store() -> CountingStore:
    return CountingStore(MemoryObjectStore())


def origin_of(config: Config, key: str) -> tuple[str, str]:
    setting = getattr(config, key)
    return setting.value, setting.origin


def with_dataset(store: CountingStore, name: str = "pets") -> None:
    from dieselfs.dataset.dataset import open_dataset
    from metadata.kv.memory import MemoryStore

    open_dataset(store, MemoryStore(), name, create=True)


def test_flag_variable_profile_dataset_store_default(
    store: CountingStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_dataset(store)
    for key, value in {"memory": "1GiB", "prefill": "1GiB", "index": "redis://s:1"}.items():
        set_shared(store, key, value)
    set_shared(store, "memory", "2GiB", "pets")
    found = completed_config(load_config(), store, "pets")
    assert origin_of(found, "memory") == ("2GiB", "settings of dataset 'pets' in the store")
    assert origin_of(found, "prefill") == ("1GiB", "settings of the store")
    assert origin_of(found, "index") == ("redis://s:1", "settings of the store")
    assert origin_of(found, "snapshots")[1] == "default"
    assert origin_of(completed_config(load_config(), store), "memory")[0] == "1GiB"
    folder = tmp_path / "XDG_CONFIG_HOME" / "dieselfs"
    folder.mkdir(parents=True)
    (folder / "config.toml").write_text(
        'profile = "p"\n[profiles.p]\nindex = "redis://p:1"\nmemory = "3GiB"\n'
    )
    found = completed_config(load_config(), store, "pets")
    assert [origin_of(found, key)[0] for key in ("index", "memory")] == ["redis://p:1", "3GiB"]
    monkeypatch.setenv("DIESELFS_INDEX", "redis://v:1")
    monkeypatch.setenv("DIESELFS_MEMORY", "4GiB")
    found = completed_config(load_config(), store, "pets")
    assert origin_of(found, "index") == ("redis://v:1", "$DIESELFS_INDEX")
    assert origin_of(found, "memory")[0] == "4GiB"
    found = completed_config(load_config(index="redis://f:1"), store)
    assert origin_of(found, "index") == ("redis://f:1", "--index")


def test_reading_costs_one_request_and_one_more_after_a_change(store: CountingStore) -> None:
    config = load_config("memory://a")
    assert not completed_config(config, store).index.is_stored
    assert store.calls == ["list"]
    for memory in ("1GiB", "2GiB"):
        set_shared(store, "memory", memory)
        for calls in ([["get_range"], []][memory == "1GiB"] + ["list", "get_range"], ["get_range"]):
            store.calls.clear()
            assert origin_of(completed_config(config, store), "memory")[0] == memory
            assert store.calls == calls
    found = completed_config(config, store)
    store.calls.clear()
    assert completed_config(found, store) is found, "once a command"
    assert store.calls == []


def test_another_store_under_the_url_is_read_anew(store: CountingStore) -> None:
    config, other = load_config("memory://a"), MemoryObjectStore()
    set_shared(store, "memory", "1GiB")
    set_shared(other, "memory", "2GiB")
    assert origin_of(completed_config(config, store), "memory")[0] == "1GiB"
    assert origin_of(completed_config(config, other), "memory")[0] == "2GiB"


class Out(StoreWrapper):
    error: Exception | None = None

    def before(self, call: str, key: str) -> None:
        if self.error is not None:
            raise self.error


def test_a_store_that_does_not_answer(caplog: pytest.LogCaptureFixture) -> None:
    store, config = Out(MemoryObjectStore()), load_config("memory://a")
    store.error = Unavailable("out")
    assert completed_config(config, store, must_answer=False).memory is None
    assert caplog.messages == []
    store.error = None
    set_shared(store, "memory", "1GiB")
    completed_config(config, store)
    store.error = Unavailable("out")
    with pytest.raises(Unavailable):
        completed_config(config, store)
    found = completed_config(config, store, must_answer=False)
    assert origin_of(found, "memory")[0] == "1GiB"
    assert caplog.messages == [
        "the store does not answer: its settings are those that were read here last"
    ]
    store.error = Denied("403")
    assert completed_config(config, store).memory is None
    assert "cannot be read, so none of them count: 403" in caplog.messages[-1]


def test_damaged_settings_are_an_error_that_says_what_to_do(store: CountingStore) -> None:
    set_shared(store, "memory", "1GiB")
    store.delete(settings_key(1))
    store.create(settings_key(1), [b"DIESELCF" + bytes(100)])
    with pytest.raises(Corrupt, match="dlcmd config unset --all"):
        completed_config(load_config("memory://a"), store)
    with pytest.raises(Corrupt):
        completed_config(load_config("memory://a"), store, must_answer=False)


def test_what_a_newer_release_wrote_is_ignored_in_one_line(
    store: CountingStore, caplog: pytest.LogCaptureFixture
) -> None:
    values = {"memory": "1GiB", "colour": "blue", "eviction": "arc", "prefill": 7}
    change(store, lambda _: StoreSettings(store=values, datasets={"pets": {"index": "redis://a"}}))
    for _ in range(3):
        found = completed_config(load_config("memory://a"), store, "pets")
    assert origin_of(found, "memory")[0] == "1GiB"
    assert (found.eviction, found.prefill) == (None, None)
    assert not found.index.is_stored
    assert sorted(caplog.messages) == [
        "settings of dataset pets that this release does not know are ignored: index",
        "settings of the store that this release does not know are ignored: colour, eviction, "
        "prefill",
    ]


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("ind", "redis://a", "did you mean index"),
        ("colour", "blue", "the keys are"),
        ("store", "s3://a", "each node names its store itself"),
        ("index", "redis://:pw@a:1", "DIESELFS_INDEX_LOGIN"),
        ("index", "redis://a:1/0?password=pw", "DIESELFS_INDEX_LOGIN"),
        ("index_login", "a:b", "DIESELFS_INDEX_LOGIN"),
        ("index", "http://a", "write redis://"),
        ("index", "redis", "write redis://"),
        ("cache_cluster", "node1", "HOST:PORT"),
        ("cache_cluster", "redis:a b", "redis:NAME"),
        ("cache_cluster_secret_file", "secret", "an absolute path"),
        ("cache_datasets", "a,,b", "an empty pattern"),
        ("cache_datasets", "a/b", "no dataset's name can match"),
        ("ssd", "local", "an absolute path"),
        ("ssd_size", "much", "a size"),
        ("ssd_admission", "some", "all or reject-first"),
        ("ssd_eviction", "arc", "lru or fifo"),
        ("ssd_warmup", "perhaps", "yes or no"),
        ("ssd_policy", "clever", "lru or all or reject-first or dynamic"),
        ("ssd_shadow_policy", "clever", "or future or"),
        ("ssd_write_budget", "much", "a rate"),
        ("ssd_write_budget", "0", "a rate above 0"),
        ("ssd_buckets", "file", "dataset or directory or group"),
        ("patience", "0", "whole seconds"),
        ("refresh", "daily", "yes or no"),
        ("memory", "8 apples", "a size"),
        ("eviction", "fifo", "uniform or lru"),
        ("prefill", "", "a size"),
        ("eviction", "LRU", "uniform or lru"),
        ("ssd_admission", "ALL", "all or reject-first"),
        ("ssd_eviction", "FIFO", "lru or fifo"),
        ("ssd_size", "1MiB", "6MiB at least"),
        ("memory", "0", "1 byte at least"),
        ("patience", "9" * 20, "whole seconds"),
        ("index", "lmdb://folder", "lmdb:///FOLDER"),
        ("index", "lmdb:///", "lmdb:///FOLDER"),
        ("index", "redis://a:99999", "redis://HOST:PORT"),
        ("index", "redis+cluster://a:1,:2", "redis+cluster://HOST:PORT"),
    ],
)
def test_what_is_wrong_is_refused_and_nothing_stored(
    store: CountingStore, key: str, value: str, said: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        set_shared(store, key, value)
    assert said in (refused.value.hint or "")
    assert "pw" not in str(refused.value) + (refused.value.hint or "")
    assert list(store.list("config/")) == []


def test_a_policy_and_an_admission_are_not_set_together(store: CountingStore) -> None:
    with_dataset(store)
    set_shared(store, "ssd_policy", "lru")
    set_shared(store, "ssd_admission", "reject-first")
    for dataset in (None, "pets"):
        with pytest.raises(ConfigError, match="ssd_admission reject-first and ssd_policy future"):
            set_shared(store, "ssd_policy", "future", dataset)
    unset_shared(store, "ssd_admission")
    set_shared(store, "ssd_admission", "all", "pets")
    with pytest.raises(ConfigError, match="ssd_admission all and ssd_policy future"):
        set_shared(store, "ssd_policy", "future")


def test_an_admission_beside_a_policy_is_ignored_in_what_was_stored_before(
    store: CountingStore,
) -> None:
    both = {"ssd_admission": "all", "ssd_policy": "future"}
    change(store, lambda _: StoreSettings(store=both))
    found = completed_config(load_config("memory://a"), store)
    assert found.ssd_policy is not None
    assert found.ssd_admission is None


def test_every_key_has_a_check_and_takes_a_good_value(store: CountingStore) -> None:
    assert set(_CHECKS) == set(SHARED_KEYS)
    good = {
        "index": "redis+cluster://a:1,b:2",
        "cache_cluster": "images@a:1,b:2",
        "cache_cluster_secret_file": "~/secret",
        "cache_datasets": "imagenet*,!*-val",
        "ssd": "/local/ssd",
        "ssd_size": "1TiB",
        "ssd_admission": "reject-first",
        "ssd_eviction": "fifo",
        "ssd_warmup": "yes",
        "ssd_policy": "lru",
        "ssd_shadow_policy": "hybrid",
        "ssd_write_budget": "100MB/s",
        "ssd_buckets": "directory",
        "patience": "600",
        "refresh": "no",
        "memory": "8GiB",
        "eviction": "lru",
        "prefill": "0",
    }
    assert set(good) == set(SHARED_KEYS)
    for key, value in good.items():
        set_shared(store, key.replace("_", "-"), value)
    found = completed_config(load_config("memory://a"), store)
    wanted = good | {"cache_cluster_secret_file": str(Path("~/secret").expanduser())}
    assert {key: getattr(found, key).value for key in SHARED_KEYS} == wanted
    for key in SHARED_KEYS:
        unset_shared(store, key)
    assert completed_config(load_config("memory://a"), store).index.is_default


def test_the_index_is_for_all_datasets_and_a_dataset_must_exist(store: CountingStore) -> None:
    with_dataset(store)
    with pytest.raises(ConfigError, match="for the whole store") as refused:
        set_shared(store, "index", "redis://a:1", "pets")
    assert refused.value.hint == "leave out --dataset"
    with pytest.raises(DatasetNotFound, match="did you mean 'pets'"):
        set_shared(store, "memory", "1GiB", "pet")
    assert list(store.list("config/")) == []


def test_a_log_in_of_the_node_completes_the_index_of_the_store(
    store: CountingStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_shared(store, "index", "redis://a:1/0")
    monkeypatch.setenv("DIESELFS_INDEX_LOGIN", "train:p@ss/word")
    found = completed_config(load_config("memory://a"), store)
    assert found.index.value == "redis://train:p%40ss%2Fword@a:1/0"
    assert found.holds_secret
    assert "p%40ss" not in repr(found)
    monkeypatch.setenv("DIESELFS_INDEX_LOGIN", "secret")
    assert load_config(index="redis://a:1").index.value == "redis://:secret@a:1"
    assert load_config(index="lmdb:///a").index.value == "lmdb:///a"
    assert load_config(index="redis://me@a:1").index.value == "redis://me@a:1"


def test_a_removed_dataset_leaves_no_settings(tmp_path: Path) -> None:
    url = f"file://{tmp_path}/store"
    with dieselfs.connect("pets", store=url, create=True) as client:
        client.put(b"x", "x")
    store = LocalDirectory(tmp_path / "store")
    set_shared(store, "memory", "1GiB", "pets")
    set_shared(store, "prefill", "1GiB")
    with dieselfs.connect("pets", store=url) as client:
        client.delete_dataset()
    assert completed_config(load_config(url), store, "pets").memory is None
    assert completed_config(load_config(url), store, "pets").prefill is not None


def test_connect_takes_the_settings_as_dlcmd_does(tmp_path: Path) -> None:
    url = f"file://{tmp_path}/store"
    with dieselfs.connect("pets", store=url, create=True) as client:
        client.put(b"x", "x")
    store = open_store(url)
    for key, value in {"ssd": f"{tmp_path}/ssd", "ssd_size": "64MiB", "patience": "7"}.items():
        set_shared(store, key, value)
    set_shared(store, "index", f"lmdb://{tmp_path}/elsewhere")
    set_shared(store, "memory", "64MiB", "pets")
    with dieselfs.connect("pets", store=url) as client:
        assert client.get("x") == b"x"
        assert (tmp_path / "elsewhere").is_dir()
        assert (tmp_path / "ssd/budget").exists()
        settings = client.read_settings()
        with client.sibling() as sibling:
            assert sibling.read_settings() == settings
        assert settings.memory_bytes == 64 << 20
        assert settings.ssd is not None
        assert settings.ssd.budget_bytes == 64 << 20
        retrying = client.dataset.store._retrying  # type: ignore[attr-defined]
        assert retrying._policy.operation_timeout_s == 7.0
    end_tiers()
