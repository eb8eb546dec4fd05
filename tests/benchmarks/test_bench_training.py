"""What the benchmark of training computes from a training, and how it reads an image."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("torch")

from benchmarks.bench_training import (
    BASELINE,
    SIDE,
    Course,
    FileByFile,
    tell_training,
    tell_waits,
)
from benchmarks.harness import Rounds


def test_the_class_of_an_image_is_that_of_its_folder() -> None:
    image, label = FileByFile(["class07/1.raw"], lambda path: bytes([192] * SIDE * SIDE))[0]
    assert label == 7
    assert image.shape == (1, SIDE, SIDE)
    assert float(image.min()) == float(image.max()) == 1.0


def test_waits_are_means_by_iteration_and_times_are_until_an_accuracy_all_reach(
    capsys: pytest.CaptureFixture[str],
) -> None:
    courses = {
        BASELINE: [Course([[0.4, 0.2], [0.2, 0.4]], [10.0, 20.0], [0.3, 0.6])],
        "chunk-wise": [Course([[0.1, 0.0], [0.1, 0.0]], [5.0, 10.0], [0.7, 0.5])],
    }
    tell_waits(courses)
    tell_training(courses, Rounds({BASELINE: [20.0], "chunk-wise": [10.0]}))
    waits, training = map(json.loads, capsys.readouterr().out.splitlines())
    assert waits["by_iteration_ms"] == {BASELINE: [300.0, 300.0], "chunk-wise": [100.0, 0.0]}
    assert waits["ratio"] == {"chunk-wise": pytest.approx(1 / 6, rel=1e-3)}
    assert training["ratio"]["chunk-wise"]["median"] == 0.5
    assert training["accuracy"] == 0.6
    assert training["seconds_to_accuracy"] == {BASELINE: 20.0, "chunk-wise": 5.0}
