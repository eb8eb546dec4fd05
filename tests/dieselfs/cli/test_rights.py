"""Rights by dataset, as docs/rights.md recommends them: Redis' own ACL, policies of S3 users."""

from __future__ import annotations

import json
import re
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from chunkstore.chunk_id import print_id
from chunkstore.commit_log import find_dataset
from dieselfs.assembly import open_store
from dieselfs.cache.jobs.redis_jobs import RedisJobs
from dieselfs.errors import RegistryUnavailable
from metadata.errors import IndexDenied
from metadata.kv.redis_leases import RedisLeaseSet
from tests.dieselfs.cache.jobs.made_jobs import ORDER, made_record
from tests.dieselfs.cli.conftest import Dlcmd
from tests.docs.blocks import blocks_of
from tests.services.redis_processes import RedisProcess
from tests.services.s3_server import S3Server

PAGE = Path(__file__).parents[3] / "docs/rights.md"
PASSWORD = "a-password"


def on_page(name: str) -> str:
    [text] = [block.text for block in blocks_of(PAGE) if block.file == name]
    return text


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "source"
    (folder / "cat").mkdir(parents=True)
    (folder / "cat/1.jpg").write_bytes(b"meow")
    (folder / "cat/2.jpg").write_bytes(b"purr")
    return folder


@pytest.fixture
def writer(
    dlcmd: Dlcmd,
    source: Path,
    tmp_path: Path,
    own_redis_server: RedisProcess,
    monkeypatch: pytest.MonkeyPatch,
) -> RedisProcess:
    """The server, with `imagenet` and `pets` in it; this user may change the first one."""
    monkeypatch.setenv("DIESELFS_STORE", f"file://{tmp_path}/store")
    monkeypatch.setenv("DIESELFS_INDEX", own_redis_server.url)
    for name in ("imagenet", "pets"):
        assert dlcmd("put", "-j", "1", f"{source}/", name).code == 0
    found = find_dataset(open_store(f"file://{tmp_path}/store"), "imagenet")
    assert found is not None
    words = on_page("writer.acl").replace("{ID}", f"{{{print_id(found.id)}}}")
    with own_redis_server.client() as client:
        client.execute_command(*words.replace("PASSWORD", PASSWORD).split())
    monkeypatch.setenv("DIESELFS_INDEX_LOGIN", f"imagenet-writer:{PASSWORD}")
    return own_redis_server


def all_keys(server: RedisProcess) -> dict[bytes, dict[bytes, bytes]]:
    with server.client() as client:
        return {key: client.hgetall(key) for key in client.keys("*")}


@pytest.mark.usefixtures("writer")
def test_a_writer_of_one_dataset_does_all_with_it(dlcmd: Dlcmd, source: Path) -> None:
    (source / "cat/3.jpg").write_bytes(b"hiss")
    for command in (
        ["put", "-j", "1", f"{source}/", "imagenet"],
        ["ls", "imagenet:cat"],
        ["rm", "-y", "imagenet:cat/1.jpg"],
        ["snapshot", "create", "imagenet"],
        ["fsck", "imagenet"],
        ["purge", "--leave", "0", "--grace", "0", "imagenet"],
        ["recover", "imagenet"],
    ):
        done = dlcmd(*command)
        assert done.code == 0, (command, done.err)
    assert dlcmd("ls", "imagenet:cat").lines == ["2.jpg", "3.jpg"]


def test_another_dataset_is_refused_and_unchanged(
    dlcmd: Dlcmd, source: Path, writer: RedisProcess
) -> None:
    before = all_keys(writer)
    (source / "cat/3.jpg").write_bytes(b"hiss")
    for command in (
        ["put", "-j", "1", f"{source}/", "pets"],
        ["ls", "pets"],
        ["rm", "-y", "pets:cat/1.jpg"],
        ["purge", "--leave", "0", "--grace", "0", "pets"],
    ):
        refused = dlcmd(*command)
        assert refused.code == 1, command
        assert "the server refused access" in refused.err
        assert PASSWORD not in refused.err
    assert all_keys(writer) == before


def test_a_wrong_password_is_told_and_never_shown(
    dlcmd: Dlcmd, writer: RedisProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DIESELFS_INDEX_LOGIN", "imagenet-writer:wrong-password")
    refused = dlcmd("ls", "imagenet")
    assert refused.code == 1
    assert "check user and password" in refused.err
    assert "wrong-password" not in refused.err


def test_peers_meet_at_the_key_of_their_task_alone(own_redis_server: RedisProcess) -> None:
    words = on_page("writer.acl").partition("~")[0].replace("PASSWORD", PASSWORD).split()
    with own_redis_server.client() as client:
        client.execute_command(*words, "~dieselfs:{run1}:peers")
    url = own_redis_server.url.replace("://", f"://imagenet-writer:{PASSWORD}@")
    leases, others = (RedisLeaseSet(url, f"dieselfs:{{{task}}}:peers") for task in ("run1", "run2"))
    assert leases.renew("node1", b"node1 10.0.0.1:7400", 60) == [b"node1 10.0.0.1:7400"]
    assert leases.entries() == [b"node1 10.0.0.1:7400"]
    leases.remove(b"node1 10.0.0.1:7400")
    with pytest.raises(IndexDenied, match="refused access"):
        others.renew("node1", b"node1 10.0.0.1:7400", 60)
    with own_redis_server.client() as client:
        client.execute_command("ACL", "SETUSER", "imagenet-writer", "-time")
    with pytest.raises(IndexDenied, match="refused access"):  # a command inside a script
        leases.entries()
    leases.close()
    others.close()


def test_job_records_need_the_pattern_of_the_page(own_redis_server: RedisProcess) -> None:
    words = on_page("writer.acl").partition("~")[0].replace("PASSWORD", PASSWORD).split()
    [pattern] = re.findall(r"`(~dieselfs:\{jobs\}\S*)`", PAGE.read_text())
    url = own_redis_server.url.replace("://", f"://imagenet-writer:{PASSWORD}@")
    jobs, record = RedisJobs(url), made_record()
    with own_redis_server.client() as client:
        client.execute_command(*words, "~dieselfs:{run1}:peers")
        with pytest.raises(RegistryUnavailable, match="refused access"):
            jobs.publish(record, ORDER)
        client.execute_command("ACL", "SETUSER", "imagenet-writer", pattern)
    jobs.publish(record, ORDER)
    assert jobs.records() == [record]
    assert jobs.order(ORDER.id) is not None
    jobs.withdraw(record.reader)
    jobs.close()


def test_a_reader_needs_no_index(
    dlcmd: Dlcmd, writer: RedisProcess, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with writer.client() as client:
        client.execute_command(*f"ACL SETUSER reader on >{PASSWORD} +@all %R~*".split())
    monkeypatch.setenv("DIESELFS_INDEX_LOGIN", f"reader:{PASSWORD}")
    assert dlcmd("ls", "imagenet").code == 1, "a script counts as a write"
    assert dlcmd("snapshot", "pull", "imagenet").code == 0
    [shown] = dlcmd("shuffle", "imagenet@2", "--json", "--epoch", "0").records[:1]
    assert shown


@pytest.fixture
def users(own_s3_server: S3Server) -> dict[str, tuple[str, str]]:
    """The users of the page, by name, with their keys; from here on moto checks rights."""
    import boto3  # type: ignore[import-untyped]

    own_s3_server.make_bucket("training")
    common = {
        "endpoint_url": own_s3_server.endpoint,
        "region_name": "us-east-1",
        "aws_access_key_id": "root",
        "aws_secret_access_key": "root",
    }
    iam: Any = boto3.client("iam", **common)
    policy = json.loads(on_page("writer.json"))
    for statement in policy["Statement"]:
        statement.pop("Condition", None)  # moto evaluates none
    own = policy["Statement"][1]
    keys = {}
    for name, actions in {
        "admin": None,
        "writer": own["Action"],
        "reader": ["s3:GetObject"],
    }.items():
        own["Action"] = actions or "s3:*"
        every = {"Effect": "Allow", "Action": "s3:*", "Resource": "*"}
        document = policy if actions else {**policy, "Statement": [every]}
        iam.create_user(UserName=name)
        iam.put_user_policy(UserName=name, PolicyName="p", PolicyDocument=json.dumps(document))
        made = iam.create_access_key(UserName=name)["AccessKey"]
        keys[name] = made["AccessKeyId"], made["SecretAccessKey"]
    check_rights(own_s3_server)
    return keys


def check_rights(server: S3Server) -> None:
    """Let moto check who may do what, from the next request on."""
    request = urllib.request.Request(
        f"{server.endpoint}/moto-api/reset-auth",
        data=b"0",
        headers={"Content-Type": "text/plain"},
        method="POST",
    )
    urllib.request.urlopen(request, timeout=30).close()


def test_a_policy_by_prefix_parts_writers_and_readers(
    dlcmd: Dlcmd,
    source: Path,
    own_s3_server: S3Server,
    users: dict[str, tuple[str, str]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    url = f"s3://training/dieselfs?endpoint={own_s3_server.endpoint}&region=us-east-1"
    monkeypatch.setenv("DIESELFS_STORE", url)

    def as_user(name: str) -> None:
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", users[name][0])
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", users[name][1])

    as_user("admin")
    for name in ("imagenet", "pets"):
        done = dlcmd("put", "-j", "1", f"{source}/", name)
        assert done.code == 0, done.err
    assert dlcmd("config", "set", "memory", "64MiB").code == 0
    (source / "cat/3.jpg").write_bytes(b"hiss")

    as_user("writer")
    done = dlcmd("put", "-j", "1", f"{source}/", "imagenet")
    assert done.code == 0, done.err
    assert dlcmd("cat", "imagenet:cat/3.jpg").out == b"hiss"
    assert dlcmd("config", "get", "memory").lines == ["64MiB"]
    assert dlcmd("config", "set", "memory", "1GiB").code == 1
    assert dlcmd("put", "-j", "1", f"{source}/", "pets").code == 1

    as_user("reader")
    assert dlcmd("cat", "imagenet:cat/3.jpg").out == b"hiss"
    assert dlcmd("snapshot", "pull", "imagenet").code == 0
    assert dlcmd("rm", "-y", "imagenet:cat/3.jpg").code == 1
    refused = dlcmd("cat", "pets:cat/1.jpg")
    assert refused.code == 1
    assert re.search("denied|refuse|Forbidden|AccessDenied", refused.err), refused.err

    as_user("admin")
    assert dlcmd("ls", "pets:cat").lines == ["1.jpg", "2.jpg"]
    assert dlcmd("config", "get", "memory").lines == ["64MiB"]
