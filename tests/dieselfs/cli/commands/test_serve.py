"""`dlcmd serve` and `dlcmd cluster`: what is refused before anything is opened. What they do is in
`tests/dieselfs/cache/cluster`."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from tests.dieselfs.cli.conftest import Dlcmd

SECRET = "a secret of sixteen bytes"


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--listen", "0.0.0.0"], "--advertise"),
        (["--listen", "127.0.0.1:0"], "another port"),
        (["--listen", "a b"], "not an address"),
        (["--listen", "127.0.0.1", "--cache-cluster", "a/b"], "not a name"),
        (["--listen", "127.0.0.1", "--memory", "1MiB"], "64.0 MiB at least"),
        (["--listen", "127.0.0.1", "--memory", "0"], "64.0 MiB at least"),
        (["--listen", "127.0.0.1", "--advertise", "::"], "--advertise"),
        (["--listen", "127.0.0.1", "--warm-on-miss"], "name all nodes"),
        (
            ["--listen", "127.0.0.1", "--cache-cluster", "c@10.0.0.1:1,10.0.0.2:1"],
            "does not have this node, 127.0.0.1:7700",
        ),
    ],
)
def test_what_makes_no_sense_is_refused(
    dlcmd: Dlcmd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flags: list[str], says: str
) -> None:
    monkeypatch.setenv("DIESELFS_CACHE_CLUSTER_SECRET", SECRET)
    refused = dlcmd("serve", "--ssd", tmp_path / "ssd", "--ssd-size", "128MiB", *flags)
    assert refused.code == 2
    assert says in refused.err
    assert not (tmp_path / "ssd").exists()


def test_a_node_needs_a_secret_and_an_ssd(
    dlcmd: Dlcmd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused = dlcmd("serve", "--listen", "127.0.0.1", "--ssd", tmp_path / "ssd")
    assert refused.code == 2
    assert "--cache-cluster-secret-file" in refused.err
    monkeypatch.setenv("DIESELFS_CACHE_CLUSTER_SECRET", SECRET)
    refused = dlcmd("serve", "--listen", "127.0.0.1")
    assert refused.code == 2
    assert "--ssd" in refused.err


def test_a_port_in_use_is_said(
    dlcmd: Dlcmd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DIESELFS_CACHE_CLUSTER_SECRET", SECRET)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        refused = dlcmd(
            *("serve", "--listen", address, "--ssd", tmp_path / "ssd", "--ssd-size", "128MiB")
        )
    assert refused.code == 1
    assert address in refused.err
    assert "choose another --listen" in refused.err


def test_a_ring_whose_node_does_not_answer(dlcmd: Dlcmd, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DIESELFS_CACHE_CLUSTER_SECRET", SECRET)
    with socket.socket() as nobody:  # it has the port, so that nobody else does, and never listens
        nobody.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{nobody.getsockname()[1]}"
        shown = dlcmd("cluster", address, "--json")
    assert shown.code == 6
    [node] = shown.records
    assert (node["node"], node["answers"], node["share"]) == (address, False, 0.0)
    assert "refused" in node["trouble"]


def test_a_ring_that_nobody_has_begun(
    dlcmd: Dlcmd, monkeypatch: pytest.MonkeyPatch, redis_url: str
) -> None:
    monkeypatch.setenv("DIESELFS_CACHE_CLUSTER_SECRET", SECRET)
    shown = dlcmd("cluster", "redis:nobodys", "--index", redis_url)
    assert shown.code == 6
    assert "nobodys has no nodes" in shown.err


def test_which_ring_must_be_said(dlcmd: Dlcmd) -> None:
    refused = dlcmd("cluster")
    assert refused.code == 2
    assert "DIESELFS_CACHE_CLUSTER" in refused.err
