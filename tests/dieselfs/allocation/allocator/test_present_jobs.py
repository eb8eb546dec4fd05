import pytest

from dieselfs.allocation.allocator.present_jobs import FOR_EVER, present_jobs
from tests.dieselfs.allocation.made_leases import entry, lease


def test_a_job_is_present_while_a_process_of_it_reads() -> None:
    jobs = present_jobs([entry("declared"), entry("idle")], [lease("declared"), lease("seen")])
    assert [job.name for job in jobs] == ["declared", "seen"]
    assert all(job.state.is_running for job in jobs)


def test_what_was_declared_goes_before_what_is_measured() -> None:
    [job] = present_jobs(
        [entry("a", speed_bytes_per_s=60e6, passes=3.0, gpus=4)],
        [lease("a", speed_bytes_per_s=20e6, epoch=1)],
    )
    assert job.state.job.speed_bytes_per_s == 60e6
    assert (job.state.job.gpus, job.state.passes_left) == (4, 2)


def test_a_job_that_nobody_declared_reads_for_ever_as_fast_as_it_was_seen_to() -> None:
    readers = [lease("a", speed_bytes_per_s=20e6), lease("a", speed_bytes_per_s=10e6)]
    [job] = present_jobs([], readers)
    assert job.state.job.speed_bytes_per_s == 30e6
    assert job.state.passes_left == FOR_EVER


def test_a_job_that_waits_may_be_faster() -> None:
    [job] = present_jobs([], [lease("a", speed_bytes_per_s=20e6, speed_is_bound=True)])
    assert job.state.job.speed_bytes_per_s == 30e6


def test_a_job_that_has_read_nothing_yet_has_some_speed() -> None:
    [job] = present_jobs([], [lease("a")])
    assert job.state.job.speed_bytes_per_s > 0


def test_the_nodes_of_a_job_have_the_mean_of_their_caches() -> None:
    [job] = present_jobs(
        [],
        [
            lease("a", held_bytes=100, effective_bytes=60),
            lease("a", held_bytes=50, effective_bytes=0),
        ],
    )
    assert (job.state.held_bytes, job.state.effective_bytes) == (75, 30)


def test_of_several_datasets_the_one_that_is_read_most_counts() -> None:
    validation = {"dataset": "val", "dataset_id": "2" * 32}
    small = lease("a", speed_bytes_per_s=1e6, used_bytes_per_s=5.0, **validation)
    large = lease("a", speed_bytes_per_s=9e6, used_bytes_per_s=7.0)
    [job] = present_jobs([], [small, large])
    assert (job.state.job.dataset, job.used_bytes_per_s) == ("imagenet", 12)


def test_readers_without_a_job_are_irregular() -> None:
    [job] = present_jobs([], [lease("")])
    assert (job.name, job.state.job.regular) == ("", False)


def test_a_job_that_reads_on_after_its_passes_is_about_to_end() -> None:
    [job] = present_jobs([entry("a", passes=2.0)], [lease("a", epoch=7)])
    assert job.state.left_bytes == pytest.approx(1)


def test_a_reader_that_does_not_say_how_large_its_dataset_is_counts_for_nothing() -> None:
    assert present_jobs([], [lease("a", dataset_bytes=0)]) == []


def test_readers_that_do_not_know_their_datasets_size_count_if_it_is_known_otherwise() -> None:
    [job] = present_jobs([entry("a")], [lease("a", dataset_bytes=0, speed_bytes_per_s=20e6)])
    assert job.state.job.dataset_bytes == entry("a").dataset_bytes
    assert present_jobs([], [lease("a", dataset_bytes=0)]) == []


def test_a_cache_node_is_no_job() -> None:
    node = lease("cache cluster c", dataset_bytes=0, cache_bytes=1 << 30)
    assert [job.name for job in present_jobs([entry("a")], [node, lease("a")])] == ["a"]
