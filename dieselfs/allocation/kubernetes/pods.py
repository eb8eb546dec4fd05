"""The pods of a namespace, and the port by which they are listed, watched and annotated."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal, Protocol

from dieselfs.errors import DieselFSError, RegistryUnavailable

Verb = Literal["list", "watch", "patch"]
VERBS: Final[tuple[Verb, ...]] = ("list", "watch", "patch")
"""The verbs on pods that an allocator uses; its Role allows these and no others."""


@dataclass(frozen=True, slots=True)
class Pod:
    """A pod, as far as an allocation is concerned."""

    name: str
    uid: str
    annotations: Mapping[str, str] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    phase: str = "Pending"
    """Pending, Running, Succeeded, Failed or Unknown."""
    created_s: float = 0.0
    """Seconds since 1970."""
    gpus: int = 0
    is_ending: bool = False
    """True if it was deleted, and its processes may still run."""

    @property
    def has_ended(self) -> bool:
        """Whether none of its processes will run again."""
        return self.phase in ("Succeeded", "Failed")


@dataclass(frozen=True, slots=True)
class Listed:
    """All pods at one version of the namespace."""

    pods: tuple[Pod, ...]
    version: str


@dataclass(frozen=True, slots=True)
class Changed:
    """A pod that was added or changed, or that is gone; a bookmark has a version alone."""

    version: str
    pod: Pod | None = None
    is_gone: bool = False


class PodsUnavailable(RegistryUnavailable):
    """The API server does not answer, or answers with errors: keep what is, and ask again."""


class PodsDenied(DieselFSError):
    """The service account lacks a rule: tell the administrator; ask again seldom."""


class VersionExpired(DieselFSError):
    """The API server has forgotten the version from which a watch was to go on: list again."""


class PodGone(DieselFSError):
    """The pod does not exist any more, or another one has its name."""


class PodChanged(DieselFSError):
    """The pod was changed at the same moment: try again."""


class PodApi(Protocol):
    """The API server, for the pods of one namespace. Thread-safe.

    Every method raises `PodsUnavailable` or `PodsDenied` as well.
    """

    def pods(self) -> Listed:
        """Return all pods. Costs a request for each 500 of them."""
        ...

    def watch(self, version: str) -> Iterator[Changed]:
        """Yield the changes since a version; end after some minutes. Raises `VersionExpired`.

        Costs one request.
        """
        ...

    def annotate(self, pod: Pod, values: Mapping[str, str | None]) -> None:
        """Set annotations, and remove those of None. Other annotations stay.

        Costs one request. Raises `PodGone`, `PodChanged`.
        """
        ...

    def close(self) -> None:
        """End a watch that is under way, in another thread too, and close connections."""
        ...
