"""The clouds beside S3, against doubles that speak as they do: what is asked is right, and answers
are understood."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from chunkstore.errors import AlreadyExists, Denied
from chunkstore.stores import cloud
from chunkstore.stores.cloud import CloudStore
from chunkstore.stores.forked_store import ForkedStore
from tests.contracts.object_store_contract import KEY, ObjectStoreContract, OpenStore, keys
from tests.services.azure_server import AzureServer, azure_server
from tests.services.faulty_http import Asked, FaultyProxy, Reply


def as_google(asked: Asked, server: Callable[[Asked], Reply]) -> Reply:
    """Its XML interface is that of S3, but for the header of a create-only put."""
    headers = dict(asked.headers)
    headers["authorization"] = "AWS4-HMAC-SHA256 Credential=AK/20260101/us-east-1/s3/aws4_request"
    if headers.pop("x-goog-if-generation-match", None) == "0":
        headers["if-none-match"] = "*"
    path = asked.path.replace("%2D", "-").replace("%2F", "/")
    return server(replace(asked, path=path, headers=headers))


@pytest.fixture
def google_url(s3_url: str, s3_proxy: FaultyProxy, monkeypatch: pytest.MonkeyPatch) -> str:
    """Found by the variable that Google's own libraries use for an emulator."""
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", s3_proxy.endpoint)
    s3_proxy.fault = as_google
    bucket = s3_url.partition("://")[2].partition("/")[0]
    return f"gs://{bucket}/some/prefix"


@pytest.fixture(scope="module")
def azure() -> Iterator[AzureServer]:
    with azure_server() as server:
        yield server


@pytest.fixture
def azure_url(azure: AzureServer, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT", azure.account)
    monkeypatch.setenv("AZURE_STORAGE_KEY", azure.key)
    return f"az://{azure.make_container()}/some/prefix?endpoint={azure.endpoint}"


class TestGoogle(ObjectStoreContract):
    @pytest.fixture
    def open_store(self, google_url: str) -> OpenStore:
        return lambda: ForkedStore(CloudStore(google_url))

    test_a_listing_is_complete_beside_creators = None  # the server's part, tried as S3


class TestAzure(ObjectStoreContract):
    @pytest.fixture
    def open_store(self, azure_url: str) -> OpenStore:
        return lambda: ForkedStore(CloudStore(azure_url))


@pytest.fixture(params=["google_url", "azure_url"])
def store(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> CloudStore:
    monkeypatch.setattr(cloud, "SINGLE_PUT_BYTES", 1 << 20)
    monkeypatch.setattr(cloud, "_PART_BYTES", 5 << 20)
    return CloudStore(request.getfixturevalue(request.param))


def test_a_large_object_goes_by_parts(store: CloudStore) -> None:
    parts = [bytes([number]) * (1 << 20) for number in range(11)]
    store.create(KEY, iter(parts))
    assert store.get(KEY) == b"".join(parts)
    assert keys(store) == [KEY]
    with pytest.raises(AlreadyExists):
        store.create(KEY, iter(parts))


def test_what_azure_refuses_is_told(
    azure_url: str, azure: AzureServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    absent = CloudStore(azure_url.replace("az://", "az://not-"))
    for call in (lambda: absent.create(KEY, [b"x"]), lambda: absent.get(KEY), lambda: keys(absent)):
        with pytest.raises(Denied, match="does not exist"):
            call()
    monkeypatch.setattr(azure, "refuses_deletes", True)
    with pytest.raises(Denied):
        CloudStore(azure_url).delete(KEY)
    monkeypatch.setenv("AZURE_STORAGE_KEY", "d3Jvbmc=")
    refused = CloudStore(azure_url)
    for call in (
        lambda: refused.create(KEY, [b"x"]),
        lambda: refused.get(KEY),
        lambda: keys(refused),
    ):
        with pytest.raises(Denied, match="AZURE_STORAGE_KEY"):
            call()
