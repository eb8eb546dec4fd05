"""What users write for a dataset, a snapshot, a path."""

import os

import pytest

from dieselfs.dataset.address import DatasetAddress, parse_address, parse_dataset
from dieselfs.errors import AddressError


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("imagenet", DatasetAddress("imagenet", contents=True)),
        ("dl://imagenet", DatasetAddress("imagenet", contents=True)),
        ("dl://imagenet/", DatasetAddress("imagenet", contents=True)),
        ("imagenet:", DatasetAddress("imagenet", contents=True)),
        ("imagenet@12", DatasetAddress("imagenet", snapshot="12", contents=True)),
        ("imagenet:train/a.jpg", DatasetAddress("imagenet", "train/a.jpg")),
        ("imagenet:/train/a.jpg", DatasetAddress("imagenet", "train/a.jpg")),
        ("imagenet:train/", DatasetAddress("imagenet", "train", contents=True)),
        ("dl://imagenet/train/a.jpg", DatasetAddress("imagenet", "train/a.jpg")),
        (
            "dl://imagenet@7-ab12/train/",
            DatasetAddress("imagenet", "train", "7-ab12", contents=True),
        ),
        ("d:a:b@c%20?d#e", DatasetAddress("d", "a:b@c%20?d#e")),
        ("dl://d/a:b@c", DatasetAddress("d", "a:b@c")),
    ],
)
def test_every_form_is_understood(text: str, expected: DatasetAddress) -> None:
    assert parse_address(text) == expected


@pytest.mark.parametrize(
    "address",
    [
        DatasetAddress("d", "a/b"),
        DatasetAddress("d", "a", "3-ff"),
        DatasetAddress("d", contents=True),
    ],
)
def test_an_address_prints_as_it_is_read(address: DatasetAddress) -> None:
    assert parse_address(str(address)) == address


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("", "dl://"),
        ("imagenet/train", "imagenet:train"),
        ("/data/imagenet", "dl://"),
        ("s3://bucket/x", "dl://"),
        ("dl:///x", "dl://"),
        (".hidden:x", "dl://"),
        ("imagenet:a//b", "dl://"),
        ("imagenet:a/../b", "dl://"),
        ("imagenet:./a", "dl://"),
        ("imagenet:" + "x" * 256, "dl://"),
        ("imagenet@:x", "snapshot ls"),
        ("imagenet@a b:x", "snapshot ls"),
    ],
)
def test_what_is_no_address_is_refused_with_a_hint(text: str, hint: str) -> None:
    with pytest.raises(AddressError) as caught:
        parse_address(text)
    assert hint in str(caught.value.hint)


def test_names_of_any_bytes_survive() -> None:
    name = os.fsdecode(b"caf\xe9 \n\x1b[31m")
    assert os.fsencode(parse_address("d:" + name).path) == b"caf\xe9 \n\x1b[31m"


def test_a_dataset_alone() -> None:
    assert parse_dataset("dl://imagenet/") == "imagenet"
    for text in ("imagenet:a", "imagenet@3"):
        with pytest.raises(AddressError, match="without a path or snapshot"):
            parse_dataset(text)


def test_the_name_of_what_is_addressed() -> None:
    assert parse_address("d:a/b.jpg").name == "b.jpg"
    assert parse_address("d").name == "d"
