"""What was called otherwise before the glossary is understood for one release."""

from dieselfs.former_names import present_key, variable, with_former_keys


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
