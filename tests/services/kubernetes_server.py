"""A double of the Kubernetes API server on loopback: the pods of namespaces, over real HTTP.

It lists in pages, watches with bookmarks and versions that expire, and patches as the API server
does (https://kubernetes.io/docs/reference/using-api/api-concepts). It can refuse (403), report
conflicts (409), be away, and it remembers each request.
"""

from __future__ import annotations

import itertools
import json
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import yaml

NAMESPACE = "training"
ACCOUNT = "system:serviceaccount:training:dieselfs-allocator"
EPOCH = "2026-11-24T08:00:00Z"


@dataclass(frozen=True)
class Request:
    at: float
    verb: str
    resource: str
    name: str
    body: Any
    content_type: str


@dataclass
class State:
    """Everything that the server knows; `changed` guards it."""

    pods: dict[str, dict[str, Any]] = field(default_factory=dict)
    events: list[tuple[int, str, dict[str, Any]]] = field(default_factory=list)
    version: int = 1000
    compacted: int = 0
    """Versions before this one are forgotten."""
    denied: set[str] = field(default_factory=set)
    conflicts: int = 0
    """How many of the next patches meet a conflict."""
    gone_first: set[str] = field(default_factory=set)
    """Pods that are deleted at the moment at which they are patched."""
    is_away: bool = False
    watches: int = 0
    """How many watches go on."""
    ended: int = 0
    """Counts commands to end all watches."""
    requests: list[Request] = field(default_factory=list)
    changed: threading.Condition = field(default_factory=threading.Condition)

    def put(self, kind: str, pod: dict[str, Any]) -> None:
        self.version += 1
        pod["metadata"]["resourceVersion"] = str(self.version)
        self.events.append((self.version, kind, json.loads(json.dumps(pod))))
        self.changed.notify_all()


class KubernetesServer:
    """The server of one test, from `start` until `stop`; it may be started again."""

    def __init__(self) -> None:
        self.state = State()
        self._uids = itertools.count(1)
        self._server: _Server | None = None
        self.port = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        self.state.is_away = False
        self._server = _Server(("127.0.0.1", self.port), _Handler)
        self._server.state = self.state  # type: ignore[attr-defined]
        self.port = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()

    def stop(self) -> None:
        """Be away: connections are refused, and watches end."""
        if self._server is not None:
            self.state.is_away = True
            self.end_watches()
            self._server.shutdown()
            self._thread.join()
            self._server.end_requests()
            self._server.server_close()
            self._server = None

    # What controllers, kubelets and people do to pods.

    def add(
        self,
        name: str,
        annotations: Mapping[str, str],
        labels: Mapping[str, str] | None = None,
        phase: str = "Running",
        gpus: int = 0,
    ) -> str:
        """Create a pod; return its uid."""
        uid = f"00000000-0000-4000-8000-{next(self._uids):012d}"
        limits = {"nvidia.com/gpu": str(gpus)} if gpus else {}
        pod: dict[str, Any] = {
            "kind": "Pod",
            "apiVersion": "v1",
            "metadata": {
                "name": name,
                "namespace": NAMESPACE,
                "uid": uid,
                "creationTimestamp": EPOCH,
                "annotations": dict(annotations),
                "labels": dict(labels or {}),
            },
            "spec": {"containers": [{"name": "train", "resources": {"limits": limits}}]},
            "status": {"phase": phase},
        }
        with self.state.changed:
            self.state.pods[name] = pod
            self.state.put("ADDED", pod)
        return uid

    def annotate(self, name: str, **values: str | None) -> None:
        """Set annotations `dieselfs.io/…` by hand; underscores stand for hyphens."""
        named = {f"dieselfs.io/{key.replace('_', '-')}": value for key, value in values.items()}
        with self.state.changed:
            pod = self.state.pods[name]
            _merge(pod["metadata"]["annotations"], named)
            self.state.put("MODIFIED", pod)

    def set_phase(self, name: str, phase: str) -> None:
        with self.state.changed:
            pod = self.state.pods[name]
            pod["status"]["phase"] = phase
            self.state.put("MODIFIED", pod)

    def delete(self, name: str) -> None:
        with self.state.changed:
            self.state.put("DELETED", self.state.pods.pop(name))

    def annotations(self, name: str) -> dict[str, str]:
        with self.state.changed:
            return dict(self.state.pods[name]["metadata"]["annotations"])

    # What goes wrong.

    def compact(self) -> None:
        """Forget all versions; who watches on from one gets 410."""
        with self.state.changed:
            self.state.compacted = self.state.version + 1
            self.state.version += 1

    def end_watches(self) -> None:
        with self.state.changed:
            self.state.ended += 1
            self.state.changed.notify_all()

    @contextmanager
    def denying(self, *verbs: str) -> Iterator[None]:
        self.state.denied |= set(verbs)
        try:
            yield
        finally:
            self.state.denied -= set(verbs)

    def requests(self, verb: str | None = None) -> list[Request]:
        with self.state.changed:
            return [each for each in self.state.requests if verb in (None, each.verb)]

    def kubeconfig(self, path: Path) -> Path:
        """Write a kubeconfig for the server."""
        named = {"name": "double"}
        content = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "double",
            "clusters": [{**named, "cluster": {"server": self.url}}],
            "users": [{**named, "user": {"token": "test"}}],
            "contexts": [
                {
                    **named,
                    "context": {"cluster": "double", "user": "double", "namespace": NAMESPACE},
                }
            ],
        }
        path.write_text(yaml.safe_dump(content))
        return path


class _Server(ThreadingHTTPServer):
    daemon_threads = False
    request_queue_size = 64

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._connections: set[socket.socket] = set()

    def process_request(self, request: Any, client_address: Any) -> None:
        self._connections.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        self._connections.discard(request)
        super().shutdown_request(request)

    def end_requests(self) -> None:
        """End idle connections now, and others when they have their answers."""
        for connection in [*self._connections]:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RD)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    @property
    def state(self) -> State:
        return self.server.state  # type: ignore[attr-defined,no-any-return]

    def log_message(self, *_: Any) -> None:
        pass

    def do_GET(self) -> None:
        address = urlsplit(self.path)
        query = {key: values[0] for key, values in parse_qs(address.query).items()}
        watches = query.get("watch", "").lower() in ("true", "1")
        if not self._admit("watch" if watches else "list", address.path):
            return
        if watches:
            self._watch(query)
        else:
            self._list(query)

    def do_PATCH(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        path = urlsplit(self.path).path
        name = path.rpartition("/")[2]
        if not self._admit("patch", path, name, body):
            return
        if self.headers["Content-Type"] not in (
            "application/merge-patch+json",
            "application/strategic-merge-patch+json",
        ):
            self._refuse(415, "UnsupportedMediaType", "the body of the request was in an unknown")
            return
        state, metadata = self.state, body["metadata"]
        with state.changed:
            if name in state.gone_first:
                state.put("DELETED", state.pods.pop(name))
                state.gone_first.remove(name)
            pod = state.pods.get(name)
            if pod is None:
                self._refuse(404, "NotFound", f'pods "{name}" not found')
            elif metadata.get("uid", pod["metadata"]["uid"]) != pod["metadata"]["uid"]:
                said = f'Pod "{name}" is invalid: metadata.uid: Invalid value: field is immutable'
                self._refuse(422, "Invalid", said)
            elif state.conflicts > 0:
                state.conflicts -= 1
                said = (
                    f'Operation cannot be fulfilled on pods "{name}": the object has been '
                    "modified; please apply your changes to the latest version and try again"
                )
                self._refuse(409, "Conflict", said)
            else:
                before = dict(pod["metadata"]["annotations"])
                _merge(pod["metadata"]["annotations"], metadata["annotations"])
                if pod["metadata"]["annotations"] != before:
                    state.put("MODIFIED", pod)
                self._answer(200, pod)

    def _admit(self, verb: str, path: str, name: str = "", body: Any = None) -> bool:
        if self.state.is_away:
            self.close_connection = True
            return False
        parts = path.split("/")
        assert parts[1:4] == ["api", "v1", "namespaces"], path
        state = self.state
        with state.changed:
            kind = self.headers.get("Content-Type", "")
            state.requests.append(Request(time.monotonic(), verb, parts[5], name, body, kind))
        assert parts[4] == NAMESPACE
        if verb not in state.denied:
            return True
        self._refuse(
            403,
            "Forbidden",
            f'pods is forbidden: User "{ACCOUNT}" cannot {verb} resource "pods" in API group "" in '
            f'the namespace "{NAMESPACE}"',
        )
        return False

    def _list(self, query: Mapping[str, str]) -> None:
        limit, start = int(query.get("limit", 0)), int(query.get("continue", 0))
        with self.state.changed:
            pods = sorted(self.state.pods.values(), key=lambda pod: pod["metadata"]["name"])
            end = start + limit if limit else len(pods)
            metadata = {"resourceVersion": str(self.state.version)}
            if end < len(pods):
                metadata |= {"continue": str(end), "remainingItemCount": len(pods) - end}
            items = [{k: pod[k] for k in ("metadata", "spec", "status")} for pod in pods[start:end]]
            content = {"kind": "PodList", "apiVersion": "v1", "metadata": metadata, "items": items}
            self._answer(200, content)

    def _watch(self, query: Mapping[str, str]) -> None:
        state, since = self.state, int(query.get("resourceVersion") or 0)
        ends = time.monotonic() + float(query.get("timeoutSeconds", 1800))
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        with state.changed:
            state.watches, asked = state.watches + 1, state.ended
            state.changed.notify_all()
        try:
            with suppress(BrokenPipeError, ConnectionResetError):
                self._stream(since, ends, asked)
                self.wfile.write(b"0\r\n\r\n")
        finally:
            with state.changed:
                state.watches -= 1
                state.changed.notify_all()

    def _stream(self, since: int, ends: float, asked: int) -> None:
        """Send events since a version, and a bookmark after each batch of them."""
        state = self.state
        while time.monotonic() < ends:
            with state.changed:
                if state.ended != asked or state.is_away:  # it may be away before this begins
                    return
                if since < state.compacted:
                    said = f"too old resource version: {since} ({state.version})"
                    self._event("ERROR", _status(410, "Expired", said))
                    return
                news = [(kind, pod) for version, kind, pod in state.events if version > since]
                since = state.version
                if not news:
                    state.changed.wait(min(0.5, max(0.0, ends - time.monotonic())))
                    continue
            for kind, pod in news:
                self._event(kind, pod)
            bookmark = {"kind": "Pod", "apiVersion": "v1"}
            self._event("BOOKMARK", {**bookmark, "metadata": {"resourceVersion": str(since)}})

    def _event(self, kind: str, content: Mapping[str, Any]) -> None:
        line = json.dumps({"type": kind, "object": content}).encode() + b"\n"
        self.wfile.write(b"%x\r\n%s\r\n" % (len(line), line))

    def _refuse(self, code: int, reason: str, message: str) -> None:
        self._answer(code, _status(code, reason, message))

    def _answer(self, code: int, content: Mapping[str, Any]) -> None:
        body = json.dumps(content).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        with suppress(BrokenPipeError, ConnectionResetError):
            self.wfile.write(body)


def _status(code: int, reason: str, message: str) -> dict[str, Any]:
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": message,
        "reason": reason,
        "code": code,
    }


def _merge(annotations: dict[str, str], values: Mapping[str, str | None]) -> None:
    for key, value in values.items():
        if value is None:
            annotations.pop(key, None)
        else:
            assert isinstance(value, str), "annotations are strings"
            annotations[key] = value


def write_podinfo(path: Path, annotations: Mapping[str, str]) -> None:
    """Write annotations as kubelet does for the downward API: sorted, each quoted as in Go."""
    lines = [f"{key}={_quoted(value)}" for key, value in sorted(annotations.items())]
    temporary = path.with_name(".next")
    temporary.write_text("\n".join(lines))
    temporary.rename(path)


def _quoted(text: str) -> str:
    """Quote as `strconv.Quote` of Go does."""
    names = {"\a": "a", "\b": "b", "\f": "f", "\n": "n", "\r": "r", "\t": "t", "\v": "v"}
    found = []
    for char in text:
        code = ord(char)
        if char in '"\\':
            found.append(f"\\{char}")
        elif char in names:
            found.append(f"\\{names[char]}")
        elif char.isprintable():
            found.append(char)
        elif code < 0x80:
            found.append(f"\\x{code:02x}")
        else:
            found.append(f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}")
    return f'"{"".join(found)}"'
