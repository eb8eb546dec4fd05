"""Former names of options, variables and keys are understood for one release."""

import pytest

from dieselfs.cli.commands.mount import mount
from dieselfs.cli.commands.serve import serve
from dieselfs.config.former_names import present_key, variable, with_former_keys


def test_a_variable_has_its_former_name_too() -> None:
    assert variable({"DIESELFS_RING": "redis"}, "DIESELFS_CACHE_CLUSTER") == "redis"
    both = {"DIESELFS_RING": "redis", "DIESELFS_CACHE_CLUSTER": "none"}
    assert variable(both, "DIESELFS_CACHE_CLUSTER") == "none"
    assert variable({}, "DIESELFS_CACHE_CLUSTER") is None
    assert variable({"DIESELFS_STORE": ""}, "DIESELFS_STORE") is None


def test_a_key_has_its_former_name_too() -> None:
    assert present_key("ring") == "cache_cluster"
    assert present_key("store") == "store"


def test_json_shows_both_names() -> None:
    document = {"node": {"cached_bytes": 1}, "members": [{"blocks": 2}], "pieces": 3, "blocks": 4}
    assert with_former_keys(document) == {
        "node": {"cached_bytes": 1, "held_bytes": 1},
        "members": [{"blocks": 2, "pieces": 2}],
        "pieces": 3,
        "blocks": 4,
    }


@pytest.mark.parametrize("option", ["--prefill", "--store-ahead"])
def test_an_option_has_its_former_name_too(option: str) -> None:
    """Each has the value's type, whichever was typed."""
    found = mount.make_context("mount", ["pets", "/mnt", option, "4KiB"]).params
    assert found["prefill"] == 4096
    assert mount.make_context("mount", ["pets", "/mnt"]).params["prefill"] is None


def test_a_former_option_leaves_the_default_alone() -> None:
    assert serve.make_context("serve", ["--listen", "here"]).params["cache_cluster"] == "ring"
    found = serve.make_context("serve", ["--listen", "here", "--ring", "mine"]).params
    assert found["cache_cluster"] == "mine"
