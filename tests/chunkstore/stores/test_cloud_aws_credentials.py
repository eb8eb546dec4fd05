"""Profiles whose keys are fetched by botocore, against moto, which stands for S3 and for STS."""

from __future__ import annotations

import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from chunkstore.errors import Denied, Unavailable
from chunkstore.stores.cloud import CloudStore
from chunkstore.stores.cloud_aws_credentials import ProfileCredentials
from tests.contracts.object_store_contract import KEY
from tests.services.faulty_http import FaultyProxy
from tests.services.s3_server import ENVIRONMENT

ISSUER = """\
import json, pathlib, sys, datetime
count = pathlib.Path(__file__).with_suffix(".count")
number = int(count.read_text()) + 1 if count.exists() else 1
count.write_text(str(number))
if pathlib.Path(__file__).with_suffix(".fails").exists():
    sys.exit("the card is not in the reader")
end = datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(seconds=MINUTES * 60)
print(json.dumps({"Version": 1, "AccessKeyId": f"ISSUED{number}", "SecretAccessKey": "S",
    "SessionToken": "T", "Expiration": end.isoformat()}))
"""


@pytest.fixture
def issuer(tmp_path: Path) -> Path:
    """A program that issues keys for an hour, and counts how often."""
    program = tmp_path / "issuer.py"
    program.write_text(ISSUER.replace("MINUTES", "60"))
    return program


@pytest.fixture
def url(
    s3_url: str,
    proxied_s3_url: str,
    s3_proxy: FaultyProxy,
    tmp_path: Path,
    issuer: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> str:
    """An address of S3 behind a proxy that sees who signs; the profile gives the region."""
    for name in ENVIRONMENT:
        monkeypatch.delenv(name)
    folder = tmp_path / ".aws"
    folder.mkdir()
    (folder / "config").write_text(
        f"[profile process]\nregion = us-east-1\ncredential_process = {sys.executable} {issuer}\n"
        "[profile base]\naws_access_key_id = BASE\naws_secret_access_key = B\n"
        "[profile role]\nregion = us-east-1\nsource_profile = base\n"
        "role_arn = arn:aws:iam::123456789012:role/reader\n"
        "[profile sso]\nsso_session = corp\nsso_account_id = 1\nsso_role_name = r\n"
        "[sso-session corp]\nsso_region = us-east-1\nsso_start_url = http://127.0.0.1:9\n"
    )
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("AWS_ENDPOINT_URL_STS", s3_proxy.endpoint)
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    return proxied_s3_url.replace("&region=us-east-1", "")


def signers(proxy: FaultyProxy) -> list[str]:
    """The access keys of the requests, one for each run of the same."""
    found = [
        re.search("Credential=(\\w+)/", asked.headers["authorization"]) for asked in proxy.asked
    ]
    keys = [key[1] for key in found if key]
    return [key for key, before in zip(keys, [None, *keys], strict=False) if key != before]


def test_a_process_issues_the_keys_once(
    url: str, s3_proxy: FaultyProxy, issuer: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_PROFILE", "process")
    store = CloudStore(url)
    assert not issuer.with_suffix(".count").exists()
    for number in range(3):
        store.create(f"{KEY}{number}", [b"x"])
    assert store.get(f"{KEY}0") == b"x"
    assert signers(s3_proxy) == ["ISSUED1"]
    assert s3_proxy.asked[-1].headers["x-amz-security-token"] == "T"


def test_a_role_is_assumed(
    url: str, s3_proxy: FaultyProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_PROFILE", "role")
    store = CloudStore(url)
    store.create(KEY, [b"x"])
    assert store.get(KEY) == b"x"
    asker, role = signers(s3_proxy)
    assert asker == "BASE"  # at STS, for the role's keys
    assert role not in ("BASE", "AK")


def test_keys_that_end_soon_are_fetched_again(
    url: str, issuer: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    issuer.write_text(ISSUER.replace("MINUTES", "1"))  # below the 10 minutes of botocore
    provider = ProfileCredentials("process", None)
    assert provider()["access_key_id"] != provider()["access_key_id"]


def test_an_issuer_that_refuses_is_told(
    url: str, issuer: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_PROFILE", "process")
    issuer.with_suffix(".fails").touch()
    with pytest.raises(Denied, match=r"AWS profile process: .*card is not in the reader"):
        CloudStore(url).get(KEY)
    monkeypatch.setenv("AWS_PROFILE", "sso")
    with pytest.raises(Denied, match=r"AWS profile sso: .*Token for corp does not exist"):
        CloudStore(url).create(KEY, [b"x"])


def test_an_issuer_that_does_not_answer_may_answer_later(
    url: str, s3_proxy: FaultyProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_PROFILE", "role")
    store = CloudStore(url)
    s3_proxy.fails(lambda asked, server: replace(server(asked), unanswered=True))
    with pytest.raises(Unavailable, match="cannot fetch the credentials of AWS profile role"):
        store.create(KEY, [b"x"])
    s3_proxy.fails(lambda asked, server: replace(server(asked), status=503))
    with pytest.raises(Unavailable, match="cannot fetch the credentials of AWS profile role"):
        store.create(KEY, [b"x"])
    s3_proxy.fails(None)
    store.create(KEY, [b"x"])


def test_without_botocore_the_extra_is_named(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "botocore", None)
    monkeypatch.setitem(sys.modules, "botocore.session", None)
    monkeypatch.setenv("AWS_PROFILE", "role")
    with pytest.raises(ValueError, match=r"AWS profile role .*pip install 'dieselfs\[aws\]'"):
        CloudStore(url)
    monkeypatch.setenv("AWS_PROFILE", "base")
    CloudStore(url)
