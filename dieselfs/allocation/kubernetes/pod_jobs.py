"""The jobs of annotated pods: what is declared for them, and what each pod gets of their shares."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import xxhash

from dieselfs.allocation.directory.decisions import NO_ONES_ID, Decisions, JobEntry
from dieselfs.allocation.directory.pod_annotations import Annotations, Asked, Given
from dieselfs.allocation.directory.reader_lease import NO_LIMIT, ReaderLease
from dieselfs.allocation.kubernetes.pods import Pod
from dieselfs.cache.jobs.pod_info import job_of_pod

FOR_EVER: Final = 1000.0
"""The passes of a job of which no annotation says when it ends."""
_HOST_BYTES: Final = 63
"""A pod's hostname is its name, cut to this length."""


@dataclass(frozen=True, slots=True)
class DatasetFacts:
    """A dataset, as the store or an annotation says."""

    id: str
    size_bytes: int


FindDataset = Callable[[str], DatasetFacts | None]
"""Returns what the store says of a dataset of this name; None if it does not know it."""


@dataclass(frozen=True, slots=True)
class PodJob:
    """A job and its pods that have not ended, oldest first."""

    name: str
    asked: Asked
    dataset: DatasetFacts | None
    pods: Sequence[Pod]

    @property
    def running(self) -> Sequence[Pod]:
        """The pods whose processes may read now."""
        return [pod for pod in self.pods if pod.phase == "Running"]

    def entry(self, source: str) -> JobEntry | None:
        """Return the declaration; None if its size or its speed is not known."""
        asked, dataset = self.asked, self.dataset
        if dataset is None or asked.speed_bytes_per_s is None:
            return None
        return JobEntry(
            job=self.name,
            dataset=asked.dataset,
            dataset_id=dataset.id,
            dataset_bytes=dataset.size_bytes,
            speed_bytes_per_s=asked.speed_bytes_per_s,
            gpus=max(1, sum(pod.gpus for pod in self.pods)),
            passes=asked.passes or FOR_EVER,
            submitted_s=self.pods[0].created_s,
            regular=asked.regular,
            repeats_items=asked.repeats_items,
            order=asked.order,
            source=source,
        )


class PodJobs:
    """Reads jobs off pods; each fault of an annotation is said once for each pod."""

    def __init__(self, prefix: str, find: FindDataset, say: Callable[[str], object]) -> None:
        """`say` is called with each fault."""
        self._prefix, self._find, self._say = prefix, find, say
        self._said: dict[str, set[str]] = {}
        """The faults that were said, by the uid of the pod."""

    def of(self, pods: Mapping[str, Pod]) -> list[PodJob]:
        """Return the jobs of pods that name a dataset, by name."""
        self._said = {uid: said for uid, said in self._said.items() if uid in pods}
        found: dict[str, list[tuple[Pod, Asked]]] = defaultdict(list)
        for pod in sorted(pods.values(), key=lambda each: (each.created_s, each.name)):
            asked = None if pod.has_ended else self._asked(pod)
            if asked is None:
                continue
            name = job_of_pod(pod.annotations, pod.labels, self._prefix)
            if name:
                found[name].append((pod, asked))
            else:
                self._fault(pod, f"it names no job: annotate it with {self._prefix}job")
        return [self._job(name, found[name]) for name in sorted(found)]

    def given(self, pod: Pod) -> Given:
        """Return what the annotations of a pod give to it now."""
        annotations = Annotations(pod.annotations, self._prefix)
        given = annotations.given()
        self._say_all(pod, annotations)
        return given

    def _asked(self, pod: Pod) -> Asked | None:
        annotations = Annotations(pod.annotations, self._prefix)
        asked = annotations.asked()
        self._say_all(pod, annotations)
        return asked

    def _job(self, name: str, found: Sequence[tuple[Pod, Asked]]) -> PodJob:
        (first, asked), others = found[0], found[1:]
        for pod, other in others:
            if other != asked:
                self._fault(pod, f"it asks for another thing than {first.name}, which counts")
        dataset = self._dataset(asked)
        if dataset is None:
            self._fault(
                first,
                f"the size of dataset {asked.dataset} is not known: annotate it with "
                f"{self._prefix}dataset-bytes",
            )
        return PodJob(name, asked, dataset, [pod for pod, _ in found])

    def _dataset(self, asked: Asked) -> DatasetFacts | None:
        if asked.dataset_id is not None and asked.dataset_bytes is not None:
            return DatasetFacts(asked.dataset_id, asked.dataset_bytes)
        found = self._find(asked.dataset)
        size = asked.dataset_bytes or (0 if found is None else found.size_bytes)
        if not size:
            return None
        known = NO_ONES_ID if found is None else found.id
        return DatasetFacts(asked.dataset_id or known, size)

    def _say_all(self, pod: Pod, annotations: Annotations) -> None:
        for error in annotations.errors:
            self._fault(pod, f"ignored: {error}")

    def _fault(self, pod: Pod, what: str) -> None:
        said = self._said.setdefault(pod.uid, set())
        if what not in said:
            said.add(what)
            self._say(f"pod {pod.name}: {what}")


def stand_ins(
    jobs: Iterable[PodJob], leases: Iterable[ReaderLease], decisions: Decisions
) -> list[ReaderLease]:
    """Return a lease for each running pod of jobs whose readers publish none.

    Nothing is known of what they use, or have cached: they count as using all that they may, and as
    without a cache, so no job gets less than its rate needs.
    """
    seen = {lease.job for lease in leases}
    found = []
    for job in jobs:
        if job.name in seen or job.dataset is None or not job.running:
            continue
        io = decisions.io_of(job.name)
        used = 0.0 if io is None else io.bytes_per_s / len(job.running)
        found += [_stand_in(job, job.dataset, pod, used) for pod in job.running]
    return found


def _stand_in(job: PodJob, dataset: DatasetFacts, pod: Pod, used: float) -> ReaderLease:
    return ReaderLease(
        reader=xxhash.xxh3_64_hexdigest(pod.uid.encode()),
        job=job.name,
        host=pod.name[:255],
        pid=0,
        dataset=job.asked.dataset,
        dataset_id=id_of(job.asked.dataset, dataset),
        dataset_bytes=dataset.size_bytes,
        used_bytes_per_s=used,
    )


def id_of(name: str, dataset: DatasetFacts) -> str:
    """Return the dataset's id, or one made of its name if it is not known."""
    return xxhash.xxh3_128_hexdigest(name.encode()) if dataset.id == NO_ONES_ID else dataset.id


def given_to(job: PodJob, decisions: Decisions, leases: Sequence[ReaderLease]) -> dict[str, Given]:
    """Return what each pod of a job gets, by its uid.

    A pod's remote IO is what its readers say that they may use. Without such readers the pods that
    run divide it equally.
    """
    io, dataset = decisions.io_of(job.name), job.dataset
    cache = None if dataset is None else decisions.cache_of(id_of(job.asked.dataset, dataset))
    known = None if dataset is None or dataset.id == NO_ONES_ID else dataset.id
    shares: dict[str, float] = defaultdict(float)
    for lease in leases:
        if lease.job == job.name and lease.allowed_bytes_per_s != NO_LIMIT:
            shares[lease.host] += lease.allowed_bytes_per_s
    equal = 0.0 if io is None else io.bytes_per_s / max(1, len(job.running))
    return {
        pod.uid: Given(
            None if cache is None else cache.size_bytes,
            None if cache is None else known,
            None if io is None else shares.get(pod.name[:_HOST_BYTES], equal),
        )
        for pod in job.running
    }


def is_news(given: Given, former: Given, most: float) -> bool:
    """Return whether two allocations of a pod differ by more than a share of their values."""
    return (
        (given.cache_id, given.cache_bytes is None, given.io_bytes_per_s is None)
        != (former.cache_id, former.cache_bytes is None, former.io_bytes_per_s is None)
        or _differs(given.cache_bytes, former.cache_bytes, most)
        or _differs(given.io_bytes_per_s, former.io_bytes_per_s, most)
    )


def is_less(given: Given, former: Given) -> bool:
    """Return whether a pod gets less of something, which others wait for."""
    return _amount(given.cache_bytes) < _amount(former.cache_bytes) or _amount(
        given.io_bytes_per_s
    ) < _amount(former.io_bytes_per_s)


def _amount(value: float | None) -> float:
    return math.inf if value is None else value


def _differs(value: float | None, former: float | None, most: float) -> bool:
    if value is None or former is None:
        return False
    return abs(value - former) > max(most * max(value, former), 1.0)
