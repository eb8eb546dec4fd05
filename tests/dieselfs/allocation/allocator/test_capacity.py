import pytest

from dieselfs.allocation.allocator.capacity import capacity_of
from dieselfs.config import load_config
from dieselfs.errors import UsageError

MIB = 1 << 20


@pytest.mark.parametrize("cache_bytes", [0, 4 * MIB, 1 << 40])
def test_what_is_given_counts(cache_bytes: int) -> None:
    assert capacity_of(load_config(), cache_bytes, 1e6)() == (cache_bytes, 1e6)


def test_a_cache_below_a_region_is_refused_with_the_least_that_would_do() -> None:
    with pytest.raises(UsageError, match="is smaller than a region") as refused:
        capacity_of(load_config(), 3 * MIB, 1e6)
    assert "at least 4.0 MiB" in str(refused.value.hint)


def test_no_remote_io_and_no_cache_are_refused() -> None:
    with pytest.raises(UsageError, match="--remote-io of 0"):
        capacity_of(load_config(), 1 << 30, 0.0)
    with pytest.raises(UsageError, match="--cache is not given"):
        capacity_of(load_config(), None, 1e6)
