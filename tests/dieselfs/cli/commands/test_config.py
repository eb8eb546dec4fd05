"""`dlcmd config`: what is set for all nodes, what is refused, and where each value comes from."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from chunkstore.object_keys import settings_key
from dieselfs.assembly import open_index, open_store
from dieselfs.cache.ssd.settings import SsdChoice
from dieselfs.client import Client
from dieselfs.client.store_source import store_source
from dieselfs.config import SHARED_KEYS, Config
from dieselfs.dataset.dataset import Dataset
from metadata.dataset_state import indexed_dataset
from tests.dieselfs.cli.conftest import Dlcmd
from tests.forked_programs import run_forked
from tests.mount.mounting import needs_fuse


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for key in ("index_login", *SHARED_KEYS[1:]):
        monkeypatch.delenv(f"DIESELFS_{key.upper()}", raising=False)


def test_a_key_is_set_shown_explained_and_removed(dlcmd: Dlcmd, pets: Client) -> None:
    assert dlcmd("config", "ls").lines == []
    assert dlcmd("config", "get", "memory").code == 4
    assert dlcmd("config", "set", "memory", "1GiB").err == "memory = 1GiB for the store\n"
    assert dlcmd("config", "set", "memory", "2GiB", "--dataset", "pets").code == 0
    assert dlcmd("config", "get", "memory").lines == ["1GiB"]
    assert dlcmd("config", "get", "memory", "--dataset", "pets").lines == ["2GiB"]
    assert dlcmd("config", "ls").lines == [
        "KEY     VALUE  FOR",
        "memory  1GiB   the store",
        "memory  2GiB   dataset pets",
    ]
    assert dlcmd("config", "ls", "--json", "--dataset", "pets").records == [
        {"key": "memory", "value": "2GiB", "dataset": "pets"}
    ]
    [explained] = dlcmd("config", "explain", "memory", "--dataset", "pets", "--json").records
    origin = "settings of dataset 'pets' in the store"
    assert explained == {"key": "memory", "value": "2GiB", "from": origin}
    shown = {record["key"]: record for record in dlcmd("config", "explain", "--json").records}
    assert shown["memory"]["from"] == "settings of the store"
    assert shown["store"]["from"] == shown["index"]["from"].replace("INDEX", "STORE")
    assert shown["prefill"] == {"key": "prefill", "value": None, "from": "default"}
    assert dlcmd("config", "unset", "memory", "--dataset", "pets").code == 0
    assert dlcmd("config", "unset", "memory").code == 0
    assert dlcmd("config", "ls", "--json").records == []


def test_patterns_that_match_no_dataset_are_noted(dlcmd: Dlcmd, pets: Client) -> None:
    assert dlcmd("config", "set", "cache_datasets", "pe*,!*-val").err.count("\n") == 1
    said = dlcmd("config", "set", "cache_datasets", "pest").err
    assert "pest matches no dataset of this store" in said


@pytest.mark.parametrize("command", [["cat", "pets:readme.txt"], ["get", "pets", "OUT"]])
def test_commands_read_by_the_settings_of_the_store(
    dlcmd: Dlcmd,
    pets: Client,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    command: list[str],
) -> None:
    """Also in the threads of `get`: the SSD may not cache what the settings leave out."""
    assert dlcmd("config", "set", "cache_datasets", "*,!pets").code == 0
    asked = []

    def source(dataset: Dataset, ssd: SsdChoice, config: Config | None = None) -> Any:
        asked.append(config and config.cache_datasets and config.cache_datasets.value)
        return store_source(dataset, None, config)

    monkeypatch.setattr("dieselfs.client.store_source.store_source", source)
    assert dlcmd(*(word.replace("OUT", str(tmp_path / "out")) for word in command)).code == 0
    assert set(asked) == {"*,!pets"}


def test_a_flag_and_a_variable_take_precedence(
    dlcmd: Dlcmd, pets: Client, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored = f"{url}-stored"
    assert dlcmd("config", "set", "index", stored).code == 0
    [found] = dlcmd("config", "explain", "index", "--json").records
    assert found["from"] == "$DIESELFS_INDEX"
    [found] = dlcmd("config", "explain", "index", "--json", "--index", "memory://flag").records
    assert found == {"key": "index", "value": "memory://flag", "from": "--index"}
    monkeypatch.delenv("DIESELFS_INDEX")
    [found] = dlcmd("config", "explain", "index", "--json").records
    assert found["value"] == stored
    assert dlcmd("ls", "pets").code == 0
    assert indexed_dataset(open_index(stored), "pets") == pets.dataset.ref


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["indx", "redis://a:1"], "unknown key 'indx': did you mean index?"),
        (["index", "redis://:pw@a:1"], "could read a password in it: leave it out of the URL"),
        (["memory", "much"], "memory cannot be 'much': write a size"),
        (["memory", "1GiB", "--dataset", "pest"], "did you mean 'pets'?"),
        (["index", "redis://a:1", "--dataset", "pets"], "leave out --dataset"),
    ],
)
def test_what_is_wrong_is_refused_and_nothing_stored(
    dlcmd: Dlcmd, pets: Client, arguments: list[str], said: str
) -> None:
    refused = dlcmd("config", "set", *arguments)
    assert refused.code in (2, 3)
    assert said in refused.err
    assert "pw" not in refused.err
    assert dlcmd("config", "ls", "--json").records == []


def test_damage_stops_commands_until_all_is_removed(dlcmd: Dlcmd, pets: Client, url: str) -> None:
    open_store(url).create(settings_key(5), [b"damage"])
    for command in (["ls", "pets"], ["config", "ls"], ["config", "set", "memory", "1GiB"]):
        failed = dlcmd(*command)
        assert failed.code == 7
        assert "dlcmd config unset --all" in failed.err
    assert dlcmd("config", "unset", "--all").code == 2, "it asks"
    assert dlcmd("config", "unset", "--all", "--yes").code == 0
    assert dlcmd("ls", "pets").code == 0


def test_unset_names_what(dlcmd: Dlcmd, pets: Client) -> None:
    assert dlcmd("config", "unset").code == 2
    assert dlcmd("config", "unset", "memory", "--all").code == 2
    dlcmd("config", "set", "memory", "1GiB")
    dlcmd("config", "set", "memory", "1GiB", "--dataset", "pets")
    dlcmd("config", "set", "prefill", "1GiB", "--dataset", "pets")
    assert dlcmd("config", "unset", "--all", "--dataset", "pets").code == 0
    assert [record["dataset"] for record in dlcmd("config", "ls", "--json").records] == [None]
    again = dlcmd("config", "unset", "prefill", "--dataset", "pets")
    assert (again.code, again.err) == (0, "nothing to remove: prefill for dataset pets\n")


def test_a_node_knows_the_store_s_url_alone(tmp_path: Path, redis_url: str) -> None:
    """Ten nodes, each a user of its own: every one finds the index and the SSD."""
    source = tmp_path / "source"
    source.mkdir()
    (source / "cat").write_bytes(b"meow")
    one_line = {"DIESELFS_STORE": f"file://{tmp_path}/store"}

    def node(number: int, *arguments: str) -> subprocess.CompletedProcess[str]:
        home = {f"XDG_{name}_HOME": f"{tmp_path}/{number}/{name}" for name in ("DATA", "CACHE")}
        kept = {name: os.environ[name] for name in ("PATH", "PYTHONPATH") if name in os.environ}
        done = run_forked(
            [sys.executable, "-m", "dieselfs", *arguments],
            env=kept | home | one_line | {"HOME": f"{tmp_path}/{number}"},
        )
        done.check_returncode()
        return done

    node(0, "config", "set", "index", redis_url)
    node(0, "config", "set", "ssd", f"{tmp_path}/ssd")
    node(0, "put", f"{source}/", "pets")
    for number in range(1, 11):
        assert node(number, "ls", "pets").stdout == "cat\n"
        shown = node(number, "config", "explain", "--json").stdout.splitlines()
        found = {record["key"]: record["value"] for record in map(json.loads, shown)}
        assert (found["index"], found["ssd"]) == (redis_url, f"{tmp_path}/ssd")
        assert not (tmp_path / str(number) / "DATA/dieselfs/index").exists()


@needs_fuse
def test_a_mount_takes_the_settings_and_its_daemon_too(
    dlcmd: Dlcmd, dataset: Path, mountpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for key, value in {
        "memory": "64MiB",
        "ssd": f"{tmp_path}/ssd",
        "ssd_size": "32MiB",
        "index": f"lmdb://{tmp_path}/stored-index",
        "refresh": "yes",
        "patience": "77",
    }.items():
        assert dlcmd("config", "set", key, value).code == 0
    assert dlcmd("snapshot", "create", "pets").code == 0
    assert (tmp_path / "stored-index").is_dir()
    assert dlcmd("rm", "-y", "--no-publish", "pets:cat/1.jpg").code == 0
    assert dlcmd("mount", "pets", mountpoint, "--no-refresh").code == 8, "it is stale"
    result = dlcmd("mount", "pets", mountpoint)
    assert result.code == 0, result.err
    assert list((mountpoint / "cat").iterdir()) == [], "a new snapshot was made"
    stats = json.loads((mountpoint / ".dieselfs/stats.json").read_text())
    assert stats["cache"]["node"]["budget_bytes"] == 64 << 20
    shown = dlcmd("mounts", "--json").records
    [pid] = [record["pid"] for record in shown if record["mountpoint"] == str(mountpoint)]
    command = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    for flag, number in (("--ssd-size", 32 << 20), ("--patience", 77)):
        assert command[command.index(flag.encode()) + 1] == str(number).encode()
    assert f"lmdb://{tmp_path}/stored-index".encode() in command
    assert dlcmd("mount", "pets", mountpoint).code == 8, "the policy changes no running mount"
    assert dlcmd("umount", mountpoint).code == 0
