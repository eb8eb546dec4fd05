"""Jobs of Kubernetes for an allocator: declared by pods, and told their shares by annotations."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

from dieselfs.allocation.directory.decisions import Decisions, is_same
from dieselfs.allocation.directory.pod_annotations import Given
from dieselfs.allocation.directory.port import AllocationDirectory
from dieselfs.allocation.directory.reader_lease import ReaderLease
from dieselfs.allocation.kubernetes.annotation_writer import AnnotationWriter, WantedAnnotations
from dieselfs.allocation.kubernetes.pod_jobs import (
    FindDataset,
    PodJob,
    PodJobs,
    given_to,
    stand_ins,
)
from dieselfs.allocation.kubernetes.pods import Pod, PodApi
from dieselfs.allocation.kubernetes.watched_pods import WatchedPods

log = logging.getLogger(__name__)


class KubernetesJobs:
    """The jobs of a namespace, from `start` until `close`. One thread uses it."""

    def __init__(
        self,
        api: PodApi,
        namespace: str,
        prefix: str,
        find: FindDataset,
        *,
        readers_publish: bool,
    ) -> None:
        """`readers_publish` says whether the readers of pods have leases in the directory.

        If they have none, each running pod stands for a reader.
        """
        self._api, self._source = api, f"kubernetes:{namespace}"
        self._readers_publish = readers_publish
        self._reading = PodJobs(prefix, find, log.warning)
        self._watched = WatchedPods(api)
        self._writer = AnnotationWriter(api, prefix)
        self._jobs: Sequence[PodJob] = ()
        """The jobs that are declared."""

    def start(self) -> None:
        """Begin to watch pods. Returns at once."""
        self._watched.start()
        self._writer.start()

    def close(self) -> None:
        """Watch and write no more; the annotations of pods stay."""
        self._writer.end()
        self._watched.end()
        self._api.close()
        self._writer.join()
        self._watched.join()

    @property
    def waiting(self) -> int:
        """The number of pods whose annotations are still to be written."""
        return self._writer.waiting

    def leases(self, found: Sequence[ReaderLease], decisions: Decisions) -> Sequence[ReaderLease]:
        """Return the leases of the directory, and those that stand for pods without any."""
        return (
            found if self._readers_publish else [*found, *stand_ins(self._jobs, found, decisions)]
        )

    def beat(self, directory: AllocationDirectory) -> None:
        """Declare the jobs of pods, and annotate pods. Call it while the allocator leads.

        Raises `RegistryUnavailable`.
        """
        pods = self._watched.pods()
        if pods is None:
            return
        jobs = self._reading.of(pods)
        self._declare(jobs, directory)
        self._jobs = jobs
        self._writer.want(self._wanted(pods, jobs, directory.decisions(), directory.leases()))

    def rest(self) -> None:
        """Write nothing, as another allocator leads."""
        self._jobs = ()
        self._writer.want({})

    def _declare(self, jobs: Sequence[PodJob], directory: AllocationDirectory) -> None:
        """Declare jobs that are new or have changed, and remove those whose pods are gone.

        Jobs that were declared by others stay as they are.
        """
        entries = [entry for job in jobs if (entry := job.entry(self._source)) is not None]
        former = {entry.job: entry for entry in directory.jobs()}
        for entry in entries:
            known = former.get(entry.job)
            if known is not None and known.source != self._source:
                continue
            if known is None or not is_same(known, entry):
                directory.put_job(entry)
        names = {entry.job for entry in entries}
        for name, known in former.items():
            if known.source == self._source and name not in names:
                directory.remove_job(name)

    def _wanted(
        self,
        pods: Mapping[str, Pod],
        jobs: Sequence[PodJob],
        decisions: Decisions,
        leases: Sequence[ReaderLease],
    ) -> dict[str, WantedAnnotations]:
        """Return what running pods are to be told.

        A job without a decision is new, or the directory was lost: its pods keep what they have.
        """
        given: dict[str, Given] = {}
        waiting: set[str] = set()
        for job in jobs:
            if decisions.io_of(job.name) is None:
                waiting.update(pod.uid for pod in job.pods)
            else:
                given |= given_to(job, decisions, leases)
        return {
            uid: WantedAnnotations(pod, given.get(uid, Given()), self._reading.given(pod))
            for uid, pod in pods.items()
            if pod.phase == "Running" and not pod.is_ending and uid not in waiting
        }
