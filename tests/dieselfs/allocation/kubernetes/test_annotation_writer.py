from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from dieselfs.allocation.directory.pod_annotations import Given
from dieselfs.allocation.kubernetes.annotation_writer import AnnotationWriter, WantedAnnotations
from dieselfs.allocation.kubernetes.pods import Changed, Listed, Pod
from tests.eventually import eventually

POD = Pod("a", "uid", {"x": "y"}, phase="Running")
OTHER = Pod("b", "other", {}, phase="Running")
LESS, MORE = Given(io_bytes_per_s=1e6), Given(io_bytes_per_s=2e6)


class Api:
    """An API server that is asked for the next annotations while it answers."""

    def __init__(self, during: list[dict[str, WantedAnnotations]]) -> None:
        self.during = during
        self.written: list[tuple[str, Mapping[str, str | None]]] = []

    def annotate(self, pod: Pod, values: Mapping[str, str | None]) -> None:
        self.written.append((pod.name, values))
        if self.during:
            self.writer.want(self.during.pop(0))

    def pods(self) -> Listed:
        raise NotImplementedError

    def watch(self, version: str) -> Iterator[Changed]:
        raise NotImplementedError

    def close(self) -> None:
        pass

    @contextmanager
    def run(self) -> Iterator[AnnotationWriter]:
        self.writer = AnnotationWriter(self, "p/")
        self.writer.start()
        try:
            yield self.writer
        finally:
            self.writer.end()
            self.writer.join()


def wanted(given: Given) -> dict[str, WantedAnnotations]:
    return {POD.uid: WantedAnnotations(POD, given, Given())}


def test_what_is_wanted_again_while_it_is_written_is_written_once() -> None:
    api = Api([wanted(LESS)])
    with api.run() as writer:
        writer.want(wanted(LESS))
        eventually(lambda: not api.during and not writer.waiting)
    assert api.written == [("a", LESS.values("p/"))]


def test_what_changes_while_it_is_written_is_written_then() -> None:
    api = Api([wanted(MORE)])
    with api.run() as writer:
        writer.want(wanted(LESS))
        eventually(lambda: not api.during and not writer.waiting)
    assert api.written == [("a", LESS.values("p/")), ("a", MORE.values("p/"))]


def test_a_pod_that_gets_less_comes_before_one_that_gets_more_than_it_was_told_last() -> None:
    less = {OTHER.uid: WantedAnnotations(OTHER, LESS, MORE)}
    api = Api([wanted(MORE) | less])
    with api.run() as writer:
        writer.want(wanted(LESS))
        eventually(lambda: not api.during and not writer.waiting)
    values = LESS.values("p/"), MORE.values("p/")
    assert api.written == [("a", values[0]), ("b", values[0]), ("a", values[1])]
