"""Fixtures: an S3 server, one a test process, and a bucket of its own for every test."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from tests.services.faulty_http import FaultyProxy, faulty_proxy
from tests.services.s3_server import ENVIRONMENT, S3Server, endpoint_of, s3_server

_numbers = itertools.count()


@pytest.fixture(scope="session")
def _s3_server() -> Iterator[S3Server]:
    with s3_server() as server:
        yield server


@pytest.fixture
def own_s3_server() -> Iterator[S3Server]:
    """One to be killed."""
    with s3_server() as server:
        yield server


@pytest.fixture
def s3_url(_s3_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> str:
    """The address of an empty bucket; its credentials are in the environment."""
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    return _s3_server.make_bucket(f"bucket-{next(_numbers)}")


@pytest.fixture
def s3_proxy(s3_url: str) -> Iterator[FaultyProxy]:
    """In front of the server of `s3_url`: sound, until it is told otherwise."""
    with faulty_proxy(endpoint_of(s3_url)) as proxy:
        yield proxy


@pytest.fixture
def proxied_s3_url(s3_url: str, s3_proxy: FaultyProxy) -> str:
    """As `s3_url`, through the proxy."""
    return s3_url.replace(endpoint_of(s3_url), s3_proxy.endpoint)
