"""Which setting says what datasets SSDs may cache, and who is told that it makes no sense."""

from __future__ import annotations

import pytest

from chunkstore.ssd.policies.eligibility import Eligibility
from dieselfs.cache.cached_datasets import cached_datasets
from dieselfs.cache.read_stack import client_settings
from dieselfs.config import load_config
from dieselfs.errors import ConfigError, UsageError

VARIABLE = {"DIESELFS_CACHE_DATASETS": "coco,!*-val"}


def test_a_flag_goes_before_the_configuration() -> None:
    config = load_config(environment=VARIABLE)
    assert cached_datasets(None, config) == Eligibility(("coco",), ("*-val",))
    assert cached_datasets("*", config) == Eligibility()
    assert cached_datasets(None, load_config(environment={})) == Eligibility()
    assert client_settings(ssd=None, config=config).cached_datasets.refusal("pets")


def test_an_error_names_where_the_patterns_are() -> None:
    config = load_config(environment={"DIESELFS_CACHE_DATASETS": "a/b"})
    with pytest.raises(ConfigError, match=r"'a/b' \(from \$DIESELFS_CACHE_DATASETS\)"):
        cached_datasets(None, config)
    with pytest.raises(UsageError, match="--cache-datasets: an empty pattern in ''"):
        cached_datasets("", config)
