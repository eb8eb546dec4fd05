"""Listings of a whole dataset, compared with the totals of the index.

A record that an index has lost leaves no trace in a listing: neither LMDB, whose pages have no
checksums, nor a Redis server that evicts keys says what is missing. The totals do, which the
commits count by themselves. So whatever lists all of a dataset compares the two at its end.

A commit puts the totals before any of its entries, and the state applied after all of them. So a
listing is comparable if both are of one generation before it and the totals are the same after it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Protocol, runtime_checkable

from metadata import keys
from metadata.errors import RecordsLost
from metadata.kv.key_value_store import KeyValueStore, MapFields
from metadata.listing import DirectoryListing
from metadata.namespace import Namespace
from metadata.records import DatasetState, is_sealed

_Totals = tuple[int, int, int]
"""The files, their bytes, and the directories without the root."""


def complete_walk(namespace: Namespace, top: bytes = b"") -> Iterator[DirectoryListing]:
    """Yield the listings of `top` and of all below it, as `Namespace.walk` does.

    For the root the totals of the index are compared with what was listed, at the end: raises
    `RecordsLost` if they differ and no commit was applied meanwhile. Costs two gets.
    """
    if top:
        yield from namespace.walk(top)
        return
    before = _settled(namespace)
    files = size = directories = 0
    for listing in namespace.walk():
        files += len(listing.file_names) + listing.hidden_files
        size += int(listing.files["length"].sum()) + listing.hidden_bytes
        directories += len(listing.directory_names)
        yield listing
    if before is not None and _settled(namespace) == before:
        _compare(namespace.dataset.name, before, (files, size, directories))


def check_complete(namespace: Namespace) -> None:
    """Raise `RecordsLost` if the index lists less or more than its totals say.

    Costs a scan of all maps of directories: about 5 µs a file.
    """
    for _ in complete_walk(namespace):
        pass


@runtime_checkable
class ChecksMaps(Protocol):
    """A `KeyValueStore` that can tell if records of a map are lost by damage of its medium."""

    def check_map(self, key: bytes, is_sound: Callable[[bytes, bytes], bool]) -> None:
        """Raise `IndexDamaged` or `RecordCorrupt` if they may be.

        `is_sound` is a function of map key + field and value.
        """
        ...


def check_directory(namespace: Namespace, directory: bytes) -> None:
    """Raise `IndexDamaged` or `RecordCorrupt` if records of this directory may be lost by damage.

    A listing of one directory has no total. An index that cannot tell raises nothing.
    """
    index, dataset_id = namespace.index, namespace.dataset.id
    if isinstance(index, ChecksMaps):
        for key_of in (keys.directories_of, keys.files_of):
            index.check_map(key_of(dataset_id, directory), is_sealed)


def _settled(namespace: Namespace) -> DatasetState | None:
    """Return the totals; None if a commit is being applied, or if the index has no totals yet."""
    index: KeyValueStore = namespace.index
    key = keys.state_of(namespace.dataset.id)
    fields = [keys.TOTALS, keys.APPLIED, keys.REBUILDING]
    totals, applied, rebuilding = index.get_many([MapFields(key, fields)])[0]
    if totals is None or applied is None or rebuilding is not None:
        return None
    states = [
        DatasetState.decode(key, field, value)
        for field, value in zip(fields, (totals, applied), strict=False)
    ]
    return states[0] if states[0] == states[1] else None


def _compare(name: str, state: DatasetState, found: _Totals) -> None:
    expected = (state.files, state.bytes, state.directories)
    if found != expected:
        raise RecordsLost(
            f"the index of {name} lists {found[0]:,} files, {found[1]:,} bytes and {found[2]:,} "
            f"directories, but its totals say {expected[0]:,}, {expected[1]:,} and "
            f"{expected[2]:,}: run `dlcmd recover {name}`"
        )
