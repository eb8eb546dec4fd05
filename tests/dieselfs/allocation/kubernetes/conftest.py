from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from dieselfs.allocation.kubernetes.official_client import OfficialClient, configured
from dieselfs.allocation.kubernetes.request_pace import RequestPace
from tests.services.kubernetes_server import KubernetesServer


@pytest.fixture
def server() -> Iterator[KubernetesServer]:
    server = KubernetesServer()
    server.start()
    yield server
    server.stop()


@pytest.fixture
def api(server: KubernetesServer, tmp_path: Path) -> Iterator[OfficialClient]:
    api = opened(server, tmp_path)
    yield api
    api.close()


def opened(server: KubernetesServer, tmp_path: Path, per_s: float = 1000.0) -> OfficialClient:
    """Return the official client of the server, with requests at this pace."""
    configuration, namespace = configured(str(server.kubeconfig(tmp_path / "kubeconfig")))
    return OfficialClient(configuration, namespace, RequestPace(per_s))
