"""The map from segments to buckets, and the keys of segments."""

from __future__ import annotations

import pytest

from chunkstore.ssd.policies.segment_buckets import Tags, bucket_map_named, key_of
from chunkstore.ssd.segments import Segment

TAGS = Tags("imagenet", "job", "train/cat/", group=7)


@pytest.mark.parametrize(
    ("name", "bucket"),
    [
        ("dataset", "imagenet"),
        ("directory", "imagenet:train/cat"),
        ("group", "imagenet#7"),
    ],
)
def test_each_map_names_its_part_of_the_dataset(name: str, bucket: str) -> None:
    assert bucket_map_named(name)(TAGS) == bucket


def test_a_request_without_a_group_is_of_the_whole_dataset() -> None:
    assert bucket_map_named("group")(Tags("imagenet")) == "imagenet"


def test_datasets_share_no_bucket() -> None:
    for name in ("dataset", "directory", "group"):
        of = bucket_map_named(name)
        assert of(Tags("a", directory="x", group=1)) != of(Tags("b", directory="x", group=1))


def test_an_unknown_map_is_named_with_those_that_exist() -> None:
    with pytest.raises(ValueError, match="no bucket map 'file'; there are dataset, directory"):
        bucket_map_named("file")


def test_keys_differ_in_chunk_and_number() -> None:
    chunks = [bytes([n]) * 16 for n in range(20)]
    found = {key_of(Segment(chunk, number)) for chunk in chunks for number in range(20)}
    assert len(found) == 400
    assert max(found).bit_length() == 64
