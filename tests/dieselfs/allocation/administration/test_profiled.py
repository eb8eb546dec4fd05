from typing import Any

import pytest

from dieselfs.allocation.administration.profiled import Observation, observation, profiled
from dieselfs.errors import UsageError

ALLOCATION = {"job": "resnet", "dataset_bytes": 10**9, "epoch": 3}


def measured(*seen: tuple[float, int, float], **fields: Any) -> Any:
    statistics = {"allocation": {**ALLOCATION, **fields}}
    return profiled(statistics, "imagenet", [Observation(*each) for each in seen])


def test_the_speed_is_that_of_the_time_without_waiting() -> None:
    found = measured((0, 0, 0.0), (1, 10**6, 0.9), (1, 10**6, 0.9), (3, 9 * 10**6, 0.9))
    assert (found.job.name, found.job.dataset) == ("resnet", "imagenet")
    assert (found.job.speed_bytes_per_s, found.speed_is_lower_bound) == (4e6, False)
    assert found.waited_share == pytest.approx(0.3)
    assert found.elapsed_s == 3


def test_waiting_all_the_time_and_unseen_reads_give_a_lower_bound() -> None:
    waits = measured((0, 0, 0.0), (1, 10**6, 4.0))
    assert (waits.speed_is_lower_bound, waits.sees_all, waits.waited_share) == (True, True, 1.0)
    unseen = measured((0, 0, 0.0), (1, 10**6, 0.0), epoch=None)
    assert (unseen.speed_is_lower_bound, unseen.sees_all) == (True, False)
    assert unseen.job.repeats_items


def test_nothing_is_measured_of_idle_readers_and_former_releases() -> None:
    with pytest.raises(UsageError, match="nothing was read meanwhile"):
        measured((0, 5, 0.0), (1, 5, 0.0))
    with pytest.raises(UsageError, match="nothing was read meanwhile"):
        measured((0, 5, 0.0))
    with pytest.raises(UsageError, match="does not say what its readers have read"):
        observation({"allocation": {"job": ""}})
    quiet = {"read_bytes": 0, "read_waited_s": 0.0, "observed_at_s": None}
    assert observation({"allocation": quiet}) is None


def test_a_mount_without_a_job_is_called_by_its_dataset() -> None:
    assert measured((0, 0, 0.0), (1, 9, 0.0), job="").job.name == "imagenet"
