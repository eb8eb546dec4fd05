"""Addresses as they may be shown, however wrong they are."""

import pytest

from metadata.url_secrets import without_secrets


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("file:///data/store", "file:///data/store"),
        ("file:///data/a@b?c", "file:///data/a@b?c"),
        ("s3://key:secret@host:9000/bucket?token=secret#x", "s3://host:9000/bucket"),
        ("redis://:p@ss@h:1/0", "redis://h:1/0"),
        ("redis://:p/ss@h", "redis://***"),
        ("redis://h/0?password=a@b", "redis://***"),
        ("redis://h/0?password=x", "redis://h/0"),
        ("memory://", "memory://"),
        ("me:secret@host", "host"),
        ("", ""),
    ],
)
def test_urls_are_shown_without_secrets(url: str, shown: str) -> None:
    assert without_secrets(url) == shown
