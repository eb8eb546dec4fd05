"""The connection of an allocator to a Kubernetes cluster, from options and the configuration."""

from __future__ import annotations

from functools import partial

from dieselfs.allocation.kubernetes.datasets import StoredDatasets
from dieselfs.allocation.kubernetes.kubernetes_jobs import KubernetesJobs
from dieselfs.allocation.kubernetes.request_pace import RequestPace
from dieselfs.assembly import open_places
from dieselfs.cache.jobs.registries import is_redis
from dieselfs.config import Config
from dieselfs.errors import UsageError


def connect(config: Config, namespace: str | None, prefix: str) -> KubernetesJobs:
    """Return the jobs of a namespace; by default the one of this pod, or of the kubeconfig.

    No call is made. Raises `UsageError` if the client is not installed, or knows no cluster.
    """
    try:
        from dieselfs.allocation.kubernetes.official_client import OfficialClient, configured
    except ImportError as error:
        raise UsageError(
            f"--kubernetes needs the official client: {error}", "pip install 'dieselfs[kubernetes]'"
        ) from error
    configuration, here = configured()
    chosen = namespace or here
    api = OfficialClient(configuration, chosen, RequestPace())
    find = StoredDatasets(partial(open_places, config, None))
    shared = is_redis(config.index.value)
    return KubernetesJobs(api, chosen, prefix, find, readers_publish=shared)
