from __future__ import annotations

import filecmp
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from chunkstore.errors import AlreadyExists, Denied, Unavailable
from chunkstore.stores.cloud import CloudStore
from chunkstore.stores.forked_store import ForkedStore
from chunkstore.stores.object_store import ObjectStore
from chunkstore.stores.rados import PART_BYTES, RadosStore
from chunkstore.stores.resilient import ResiliencePolicy, ResilientStore
from chunkstore.stores.retrying import RetryPolicy
from tests.ceph.conftest import Ceph
from tests.contracts.object_store_contract import KEY, OpenStore, SharedObjectStoreContract, keys


class TestLibrados(SharedObjectStoreContract):
    @pytest.fixture
    def open_store(self, ceph: Ceph) -> OpenStore:
        url = ceph.rados_url()
        return lambda: ForkedStore(RadosStore(url))


class TestGateway(SharedObjectStoreContract):
    @pytest.fixture
    def open_store(self, ceph: Ceph) -> OpenStore:
        url = ceph.s3_url()
        return lambda: ForkedStore(CloudStore(url))


@pytest.fixture(params=["librados", "gateway"])
def url(ceph: Ceph, request: pytest.FixtureRequest) -> str:
    return ceph.rados_url() if request.param == "librados" else ceph.s3_url()


def opened(url: str) -> ObjectStore:
    return RadosStore(url) if url.startswith("rados") else CloudStore(url)


def test_a_large_object(url: str) -> None:
    store, block = opened(url), random.Random(1).randbytes(1 << 20)
    count = 2 * PART_BYTES // len(block) + 6
    store.create(KEY, (block for _ in range(count)))
    assert [info.size_bytes for info in store.list("")] == [count << 20]
    assert store.get(KEY) == block * count
    start = PART_BYTES - 70_000
    assert store.get_range(KEY, start, 2 << 20) == (block * count)[start : start + (2 << 20)]
    with pytest.raises(AlreadyExists):
        store.create(KEY, (block for _ in range(count)))
    store.delete(KEY)
    assert keys(store) == []


def test_a_large_object_of_which_the_last_answer_is_lost_is_whole(
    ceph: Ceph, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its parts are not taken away as those of one that failed."""
    store = RadosStore(ceph.rados_url())
    create = store._create

    def lost(*arguments: Any) -> None:
        create(*arguments)
        raise store._rados.TimedOut("lost")

    monkeypatch.setattr(store, "_create", lost)
    parts = [bytes(1 << 20)] * (2 * PART_BYTES >> 20) + [b"end"]
    store.create(KEY, iter(parts))
    assert store.get(KEY) == b"".join(parts)


def test_a_large_delete_that_broke_off_goes_on(ceph: Ceph, monkeypatch: pytest.MonkeyPatch) -> None:
    store = RadosStore(ceph.rados_url())
    store.create(KEY, [bytes(1 << 20)] * (3 * PART_BYTES >> 20))
    remove = store._remove

    def breaks_off(name: str) -> None:
        if name.endswith("~1"):
            raise Unavailable("lost")
        remove(name)

    with monkeypatch.context() as patch:
        patch.setattr(store, "_remove", breaks_off)
        with pytest.raises(Unavailable):
            store.delete(KEY)
    store.delete(KEY)
    assert list(store._io().list_objects()) == []


def test_a_large_object_that_fails_leaves_no_parts(ceph: Ceph) -> None:
    store = RadosStore(ceph.rados_url())

    def parts() -> Iterator[bytes]:
        yield from [bytes(1 << 20)] * (3 * PART_BYTES >> 20)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        store.create(KEY, parts())
    assert list(store._io().list_objects()) == []


def test_what_ceph_refuses_says_what_to_do(ceph: Ceph, tmp_path: Path) -> None:
    url = ceph.rados_url()
    keyring = tmp_path / "keyring"
    keyring.write_text("[client.admin]\n\tkey = AQDDDDDDDDDDDxAADDDDDDDDDDDDDDDDDDDDDg==\n")
    wrong = tmp_path / "ceph.conf"
    wrong.write_text(ceph.conf.read_text().replace(f"{ceph.folder}/keyring", str(keyring)))
    for address, says in (
        (url.replace("rados://tests", "rados://gone"), "pool gone does not exist"),
        (url.replace(str(ceph.conf), "/nowhere"), "cannot read /nowhere"),
        (f"{url}&user=client.nobody", "client.nobody"),
        (url.replace(str(ceph.conf), str(wrong)), "client.admin"),
    ):
        for call in (lambda store: store.get(KEY), lambda store: list(store.list(""))):
            with pytest.raises(Denied, match=says):
                call(RadosStore(address))


def test_an_osd_that_is_killed_loses_nothing_acknowledged(ceph: Ceph, url: str) -> None:
    """And whoever waits goes on when it is back."""
    patient = ResilientStore(opened(url), ResiliencePolicy(RetryPolicy.patient(100)))
    content = {f"datasets/d/chunks/{n}": random.Random(n).randbytes(1 << 20) for n in range(20)}
    for key, data in content.items():
        patient.create(key, [data])
    os.kill(ceph.pid("osd.0"), signal.SIGKILL)
    ceph.start_osd()
    assert {key: patient.get(key) for key in content} == content


def test_a_store_that_hangs_is_given_up(ceph: Ceph, url: str) -> None:
    store = ResilientStore(opened(url), ResiliencePolicy(RetryPolicy(tries=1), request_timeout_s=2))
    store.create(KEY, [b"x"])
    daemon = ceph.pid("osd.0" if url.startswith("rados") else "client.rgw.a")
    os.kill(daemon, signal.SIGSTOP)
    try:
        began = time.monotonic()
        with pytest.raises(Unavailable):
            store.get(KEY)
        assert time.monotonic() - began < 15
    finally:
        os.kill(daemon, signal.SIGCONT)


def test_the_main_job(url: str, tmp_path: Path) -> None:
    """Pack, mount by the index, mount without one from the store's snapshot alone, check,
    recover."""
    environment = {
        **os.environ,
        "DIESELFS_STORE": url,
        "DIESELFS_INDEX": f"lmdb://{tmp_path}/index",
        **{
            f"XDG_{name}_HOME": str(tmp_path / name)
            for name in ("DATA", "CACHE", "STATE", "CONFIG")
        },
    }

    def dlcmd(*arguments: str | Path) -> None:
        command = [sys.executable, "-m", "dieselfs.cli", *map(os.fspath, arguments)]
        done = subprocess.run(command, env=environment, timeout=300, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr

    source, mountpoint = tmp_path / "source", tmp_path / "mnt"
    mountpoint.mkdir()
    for number in range(600):
        file = source / f"class{number % 7}" / f"{number}.bin"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(random.Random(number).randbytes(random.Random(number).randrange(60_000)))
    (source / "large").write_bytes(random.Random(0).randbytes(1 << 20) * 70)
    dlcmd("put", f"{source}/", "ds")
    dlcmd("snapshot", "create", "ds")
    for options in ([], ["--no-index"]):
        dlcmd("mount", *options, "ds", mountpoint)
        try:
            compared = filecmp.dircmp(source, mountpoint, ignore=[])
            assert not compared.left_only
            for name in ["large", *(f"class{n % 7}/{n}.bin" for n in range(600))]:
                assert (mountpoint / name).read_bytes() == (source / name).read_bytes()
        finally:
            dlcmd("umount", mountpoint)
    dlcmd("scrub", "ds")
    (tmp_path / "index").rename(tmp_path / "lost")
    dlcmd("recover", "ds")
    dlcmd("fsck", "ds")
