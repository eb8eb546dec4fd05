"""The API server through the official Python client, with its errors as ours."""

from __future__ import annotations

import json
import logging
import os
import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from kubernetes import client, config, watch
from kubernetes.client.exceptions import ApiException
from kubernetes.config import ConfigException
from urllib3.exceptions import HTTPError, ReadTimeoutError

from dieselfs.allocation.kubernetes.pod_json import pod_of, version_of
from dieselfs.allocation.kubernetes.pods import (
    Changed,
    Listed,
    Pod,
    PodChanged,
    PodGone,
    PodsDenied,
    PodsUnavailable,
    Verb,
    VersionExpired,
)
from dieselfs.allocation.kubernetes.request_pace import RequestPace
from dieselfs.errors import UsageError

log = logging.getLogger(__name__)

PAGE: Final = 500
_TIMEOUT_S: Final = (5.0, 20.0)
"""To connect, and between two pieces of an answer."""
_WATCH_S: Final = 240
"""The server ends a watch then; kubelets and controllers do the same."""
_SILENCE_S: Final = 90.0
"""A watch in which not even a bookmark comes for so long is begun again: they come once a minute.
"""
_NAMESPACE: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")


def configured(kubeconfig: str | None = None) -> tuple[client.Configuration, str]:
    """Return where the API server is and how to log in there, and the namespace of this process.

    A pod has both from its service account, and another process from its kubeconfig. Raises
    `UsageError` if there is neither.
    """
    found = client.Configuration()
    try:
        if kubeconfig is None and "KUBERNETES_SERVICE_HOST" in os.environ:
            config.load_incluster_config(client_configuration=found)
            return found, _NAMESPACE.read_text().strip()
        config.load_kube_config(config_file=kubeconfig, client_configuration=found)
        _, context = config.list_kube_config_contexts(config_file=kubeconfig)
        return found, context["context"].get("namespace") or "default"
    except (ConfigException, OSError) as error:
        raise UsageError(
            f"no Kubernetes cluster is known here: {error}",
            "run it in a pod with a service account, or set KUBECONFIG",
        ) from error


class OfficialClient:
    """The `PodApi` of a namespace."""

    def __init__(
        self, configuration: client.Configuration, namespace: str, pace: RequestPace
    ) -> None:
        configuration.retries = False  # each failure is ours to count, and to wait after
        self.namespace = namespace
        self._pace, self._ending = pace, threading.Event()
        self._client = client.ApiClient(configuration)
        self._api = client.CoreV1Api(self._client)
        self._watched: Any = None
        """The answer to the last watch that has begun."""

    def __str__(self) -> str:
        return f"the API server {self._client.configuration.host}"

    def pods(self) -> Listed:
        """See `PodApi`."""
        pods: list[Pod] = []
        token: str | None = None
        while True:
            more = {} if token is None else {"_continue": token}
            with self._asking("list"):
                found = self._page(limit=PAGE, **more)
            pods += self._pods_of(found.get("items") or ())
            token = (found.get("metadata") or {}).get("continue")
            if not token:
                return Listed(tuple(pods), version_of(found))

    def watch(self, version: str) -> Iterator[Changed]:
        """See `PodApi`."""
        with self._asking("watch"):
            for event in self._events(version):
                content = event["raw_object"]
                kind, now = event["type"], version_of(content)
                pods = [] if kind == "BOOKMARK" else self._pods_of([content])
                yield Changed(now, pods[0] if pods else None, kind == "DELETED")

    def annotate(self, pod: Pod, values: Mapping[str, str | None]) -> None:
        """See `PodApi`.

        The patch says the pod's uid, so another pod of the same name is refused. It says no
        version: only these annotations are set, whatever else has changed.
        """
        metadata = {"uid": pod.uid, "annotations": dict(values)}
        with self._asking("patch", pod):
            answer = self._api.patch_namespaced_pod(
                pod.name,
                self.namespace,
                {"metadata": metadata},
                _request_timeout=_TIMEOUT_S,
                _preload_content=False,
            )
            _check(answer)

    def close(self) -> None:
        """See `PodApi`."""
        self._ending.set()
        _break_off(self._watched)
        self._client.rest_client.pool_manager.clear()

    def _events(self, version: str) -> Iterator[Mapping[str, Any]]:
        """Yield events until the watch ends, or is silent for long after it has begun."""
        self._watched = None
        try:
            for event in watch.Watch(return_type="object").stream(
                self._begin_watch,
                self.namespace,
                resource_version=version,
                allow_watch_bookmarks=True,
                timeout_seconds=_WATCH_S,
                _request_timeout=(_TIMEOUT_S[0], _SILENCE_S),
            ):
                if event is not None:
                    yield event
        except ReadTimeoutError:
            if self._watched is None:
                raise

    def _begin_watch(self, *arguments: Any, **named: Any) -> Any:
        self._watched = answer = self._api.list_namespaced_pod(*arguments, **named)
        if self._ending.is_set():  # `close` may have come before there was something to end
            _break_off(answer)
        return answer

    def _page(self, **arguments: Any) -> Any:
        answer = self._api.list_namespaced_pod(
            self.namespace, _request_timeout=_TIMEOUT_S, _preload_content=False, **arguments
        )
        _check(answer)
        return json.loads(answer.data)

    def _pods_of(self, items: Any) -> list[Pod]:
        found = []
        for item in items:
            try:
                found.append(pod_of(item))
            except ValueError as error:
                log.warning("%s: skipped: %s", self, error)
        return found

    @contextmanager
    def _asking(self, verb: Verb, pod: Pod | None = None) -> Iterator[None]:
        """Wait for the pace, and translate errors."""
        if not self._pace.wait(self._ending):
            raise PodsUnavailable(f"{self} is not asked any more")
        try:
            yield
        except ApiException as error:
            raise self._translated(error, verb, pod) from error
        except (HTTPError, OSError, ValueError, KeyError) as error:
            raise PodsUnavailable(f"{self} does not answer: {error}") from error

    def _translated(self, error: ApiException, verb: Verb, pod: Pod | None) -> Exception:
        said = _message(error)
        match error.status:
            case 403:
                return PodsDenied(
                    f"{self} refuses to {verb} pods in namespace {self.namespace}: {said}",
                    "add to the Role of its service account the rule "
                    f'{{apiGroups: [""], resources: [pods], verbs: [{verb}]}}',
                )
            case 410:
                return VersionExpired(f"{self} has forgotten this version: {said}")
            case 404 | 422 if pod is not None:
                return PodGone(f"pod {pod.name} is gone: {said}")
            case 409:
                return PodChanged(f"{self} reports a conflict: {said}")
        return PodsUnavailable(f"{self} answers {error.status}: {said}")


def _check(answer: Any) -> None:
    """Read an answer that is not deserialized. Raises `ApiException` if it is an error."""
    content = answer.data
    if not 200 <= answer.status <= 299:
        error = ApiException(status=answer.status, reason=answer.reason)
        error.body = content.decode(errors="replace")
        raise error


def _break_off(answer: Any) -> None:
    """End an answer that another thread reads."""
    connection = getattr(answer, "connection", None)
    end = getattr(connection, "sock", None)
    if end is not None:
        with suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)


def _message(error: ApiException) -> str:
    """Return the message of the answer's Status, in one line."""
    try:
        found = json.loads(error.body)["message"]
    except (TypeError, ValueError, KeyError):
        found = error.reason
    return " ".join(str(found).split())
