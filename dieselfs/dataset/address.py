"""Addresses: how a user names a dataset, one of its snapshots, or a path in it.

`dl://dataset[@snapshot]/path` is the full form; `dataset[@snapshot]:path` and a plain
`dataset[@snapshot]` are accepted. Paths are taken literally: `%`, `?` and `#` are ordinary
characters of a name. A path that ends with a slash means "the contents of".
"""

from __future__ import annotations

import os
import re
from contextlib import suppress
from dataclasses import dataclass

from chunkstore.errors import InvalidPath
from chunkstore.object_keys import check_dataset_name
from chunkstore.paths import check_path
from dieselfs.errors import AddressError

SCHEME = "dl://"
_SNAPSHOT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_MISTYPED = "dl:/"
_FORMS = "write dl://DATASET[@SNAPSHOT]/PATH or DATASET:PATH"


@dataclass(frozen=True, slots=True)
class DatasetAddress:
    """A place in a dataset.

    The path keeps undecodable bytes as surrogates; `os.fsencode` restores them.
    """

    dataset: str
    path: str = ""
    """The path relative to the dataset's root, without slashes at either end; empty for the root.
    """
    snapshot: str | None = None
    """The id, or its beginning, of the snapshot to read instead of the current state."""
    contents: bool = False
    """True for the contents of the path, not the path itself.

    It is set where the path was written with a trailing slash or is the root.
    """

    @property
    def name(self) -> str:
        """The last component of the path, or the dataset's name for the root."""
        return self.path.rpartition("/")[2] or self.dataset

    def at(self, path: str) -> DatasetAddress:
        """Return an address of another path in the same dataset and snapshot."""
        return DatasetAddress(self.dataset, path, self.snapshot, contents=not path)

    def __str__(self) -> str:
        snapshot = f"@{self.snapshot}" if self.snapshot else ""
        return f"{SCHEME}{self.dataset}{snapshot}/{self.path}"


def parse_address(text: str) -> DatasetAddress:
    """Return the address that `text` spells; raise `AddressError` with what is wrong."""
    dataset, path = _split_full(text) if text.startswith(SCHEME) else _split_short(text)
    dataset, at, snapshot = dataset.partition("@")
    _check_dataset(dataset, text)
    if at and not _SNAPSHOT.fullmatch(snapshot):
        raise AddressError(f"{text}: {snapshot!r} is not a snapshot id", "see `dlcmd snapshot ls`")
    stripped = path.removeprefix("/").removesuffix("/")
    _check_path(stripped, text)
    return DatasetAddress(
        dataset, stripped, snapshot or None, contents=not stripped or path.endswith("/")
    )


def parse_dataset(text: str) -> str:
    """Return the dataset of an address that must name nothing else; raise `AddressError`."""
    address = parse_address(text)
    if address.path or address.snapshot:
        raise AddressError(
            f"{text}: this argument must be a dataset, without a path or snapshot",
            f"write {address.dataset}",
        )
    return address.dataset


def _split_full(text: str) -> tuple[str, str]:
    dataset, slash, path = text.removeprefix(SCHEME).partition("/")
    return dataset, slash + path


def _split_short(text: str) -> tuple[str, str]:
    if "://" in text:
        raise AddressError(f"{text}: the address of a dataset must start with {SCHEME}", _FORMS)
    dataset, colon, path = text.partition(":")
    if text.startswith(_MISTYPED):  # the dataset `dl` is dl:PATH, or dl://dl/PATH
        raise AddressError(
            f"{text}: two slashes follow {SCHEME[:3]} in an address",
            f"did you mean {SCHEME}{path.lstrip('/')}? The forms are dl://DATASET[@SNAPSHOT]/PATH "
            "and DATASET:PATH",
        )
    if not colon and "/" in dataset:
        name, _, rest = dataset.partition("/")
        is_meant = _is_dataset_name(name)
        raise AddressError(
            f"{text}: this is not an address", f"did you mean {name}:{rest}" if is_meant else _FORMS
        )
    return dataset, path


def _is_dataset_name(text: str) -> bool:
    with suppress(ValueError):
        check_dataset_name(text)
        return True
    return False


def _check_dataset(dataset: str, text: str) -> None:
    try:
        check_dataset_name(dataset)
    except ValueError as error:
        raise AddressError(f"{text or 'empty address'}: {error}", _FORMS) from error


def _check_path(path: str, text: str) -> None:
    try:
        if path:
            check_path(os.fsencode(path))
    except InvalidPath as error:
        raise AddressError(f"{text}: {error}", _FORMS) from error
