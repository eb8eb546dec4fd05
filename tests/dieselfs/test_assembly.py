"""URLs become stores and indexes, or errors that say what to write."""

from pathlib import Path

import pytest

from chunkstore.errors import NoStoreYet, Unavailable
from chunkstore.stores.local_directory import LocalDirectory
from chunkstore.stores.resilient import ResilientStore
from dieselfs.assembly import open_configured_store, open_index, open_places, open_store
from dieselfs.config import load_config
from dieselfs.errors import ConfigError
from metadata.errors import IndexUnavailable


def test_a_file_url_is_a_directory(tmp_path: Path) -> None:
    store = open_store(f"file://{tmp_path}/a%20b")
    assert isinstance(store, ResilientStore)
    assert isinstance(store.store, LocalDirectory)
    assert store.store.root == tmp_path / "a b"


def test_a_memory_place_is_shared_by_all_who_name_it() -> None:
    open_store("memory://shared").create("k", [b"v"])
    assert open_store("memory://shared").get("k") == b"v"
    assert open_index("memory://shared") is open_index("memory://shared")
    assert open_index("memory://shared") is not open_index("memory://other")


@pytest.mark.parametrize(
    ("url", "hint"),
    [
        ("/data/store", "file:///data/store"),
        ("file:/data/store", "file:///data/store"),
        ("fil:///data", "did you mean file://"),
        ("swift://bucket", "file:///FOLDER"),
        ("s3://key:secret@bucket", "s3://BUCKET"),
        ("lmdb:///data", "file:///FOLDER"),
        ("file://data/store", "file:///data/store"),
        ("file:///", "file:///FOLDER"),
        ("", "file:///FOLDER"),
    ],
)
def test_a_wrong_store_names_the_right_forms(url: str, hint: str) -> None:
    with pytest.raises(ConfigError) as caught:
        open_store(url)
    assert hint in str(caught.value.hint)


@pytest.mark.parametrize(
    "url",
    [
        "file:///x",
        "reds://host",
        "redis://host:port",
        "redis://",
        "redis+cluster://",
        "redis+cluster://a:1,,b:2",
        "lmdb:/x",
    ],
)
def test_a_wrong_index_names_the_right_forms(url: str) -> None:
    with pytest.raises(ConfigError) as caught:
        open_index(url)
    assert "redis" in str(caught.value.hint)


def test_an_index_that_does_not_answer_is_unavailable() -> None:
    with pytest.raises(IndexUnavailable):
        open_index("redis://127.0.0.1:1/0")


def test_the_embedded_default_is_made_private(tmp_path: Path) -> None:
    config = load_config(
        environment={"HOME": str(tmp_path), "XDG_DATA_HOME": str(tmp_path / "data")}
    )
    store, index = open_places(config, create=True)
    index.close()
    store.create("datasets/x", [b""])
    assert [info.key for info in store.list("")] == ["datasets/x"]
    assert (tmp_path / "data/dieselfs").stat().st_mode & 0o777 == 0o700


def test_a_default_store_that_is_missing_is_told_and_not_made(tmp_path: Path) -> None:
    config = load_config(environment={"HOME": str(tmp_path)})
    with pytest.raises(NoStoreYet, match=r"there is no store at .*: make it with `dlcmd put`"):
        open_places(config)
    with pytest.raises(Unavailable):
        list(open_configured_store(config, None).list(""))
    assert list(tmp_path.iterdir()) == []


def test_an_error_tells_where_the_url_came_from(tmp_path: Path) -> None:
    config = load_config(environment={"HOME": str(tmp_path), "DIESELFS_STORE": "nothing"})
    with pytest.raises(ConfigError, match=r"from \$DIESELFS_STORE"):
        open_configured_store(config)
