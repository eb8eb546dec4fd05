"""Tags: names that users give to snapshots, which protect the snapshots and their chunks.

A tagged snapshot is neither pruned nor removed. The object with the greatest number defines a tag
(`numbered_objects`); an object without a snapshot marks the tag as removed. So among concurrent
taggers the later number wins, without a lock. A damaged tag is never replaced by an older number:
it is reported until somebody tags or untags again. docs/chunk-format.md defines the bytes.
"""

from __future__ import annotations

import re
import struct
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from chunkstore.chunk_format import DatasetRef
from chunkstore.commit_log import find_dataset
from chunkstore.errors import AlreadyExists, Corrupt, NotFound
from chunkstore.numbered_objects import (
    NumberedListing,
    NumberedObject,
    list_numbers,
    list_present,
)
from chunkstore.object_keys import check_dataset_name, tag_key, tags_prefix
from chunkstore.sealed_object import sealed, unsealed
from chunkstore.stores.object_store import ObjectStore

MAGIC: Final = b"DIESELTG"
FORMAT_VERSION: Final = 1
MAX_BYTES: Final = 512
"""The longest tag object that is read; a valid one has at most 48 + 128 + 49 + 8 bytes."""
_FIXED = struct.Struct(
    "<8sHHHHQq16s"
)  # magic, version, reserved, lengths of tag and id, number, time, dataset id
_LOOKS_LIKE_AN_ID: Final = re.compile(r"[0-9]+(-[0-9a-f]*)?|[0-9a-f]{6,32}")
"""A pattern for a generation, the beginning of a snapshot id, or that of its hash."""
_SNAPSHOT_ID: Final = re.compile(r"[0-9]{1,16}-[0-9a-f]{32}")


@dataclass(frozen=True, slots=True)
class Tag:
    """One numbered object of a tag."""

    name: str
    number: int
    dataset_id: bytes
    time_ns: int
    """The time when the tag was set, by the tagger's clock."""
    snapshot_id: str
    """`<generation>-<hash>`, or empty if the tag was removed."""

    @property
    def gone(self) -> bool:
        """True if the tag was removed."""
        return not self.snapshot_id

    @property
    def generation(self) -> int:
        """The generation of the snapshot, or 0 if the tag was removed."""
        return int(self.snapshot_id.partition("-")[0] or 0)

    def encode(self) -> bytes:
        """Return the bytes of the tag object."""
        name, snapshot_id = self.name.encode(), self.snapshot_id.encode()
        fixed = _FIXED.pack(
            MAGIC,
            FORMAT_VERSION,
            0,
            len(name),
            len(snapshot_id),
            self.number,
            self.time_ns,
            self.dataset_id,
        )
        body = fixed + name + snapshot_id
        return sealed(body)

    @classmethod
    def decode(cls, data: bytes, name: str, number: int) -> Tag:
        """Return the tag in `data`.

        Raise `Corrupt` unless `data` is a valid object of that tag and number.
        """
        what = f"number {number} of tag {name}"
        body, fields = unsealed(data, _FIXED, MAGIC, FORMAT_VERSION, what, "a tag")
        _, name_bytes, id_bytes, found, time_ns, dataset_id = fields
        if len(body) != _FIXED.size + name_bytes + id_bytes:
            raise Corrupt(f"the length of {what} is wrong")
        text = body[_FIXED.size :].decode("ascii", errors="replace")
        if (text[:name_bytes], found) != (name, number):
            raise Corrupt(f"the object of {what} contains another tag or number")
        snapshot_id = text[name_bytes:]
        if snapshot_id and not _SNAPSHOT_ID.fullmatch(snapshot_id):
            raise Corrupt(f"{what} names {snapshot_id!r}, which is not a snapshot id")
        return cls(name, number, dataset_id, time_ns, snapshot_id)


def check_tag_name(tag: str) -> None:
    """Raise `ValueError` unless `tag` is a legal name of a tag.

    A tag follows the rules for dataset names and cannot be mistaken for (the beginning of) a
    snapshot id.
    """
    try:
        check_dataset_name(tag)
    except ValueError as error:
        raise ValueError(str(error).replace("dataset name", "tag")) from None
    if is_like_an_id(tag):
        raise ValueError(
            f"illegal tag {tag!r}: it could be taken for the id of a snapshot; add another letter"
        )


def is_like_an_id(text: str) -> bool:
    """Return whether `text` may mean a snapshot, and therefore cannot be a tag.

    It may be a generation, or the beginning of a snapshot id or of its hash.
    """
    return _LOOKS_LIKE_AN_ID.fullmatch(text) is not None


def tag(store: ObjectStore, name: str, tag: str, snapshot_id: str) -> Tag:
    """Let `tag` name a snapshot of the dataset, and return the new tag.

    The tag is durable when the call returns; its older numbers are deleted. Raises `ValueError` for
    an illegal tag or id, and `NotFound` without a dataset of that name. The caller must know that
    the snapshot exists. Cost: one get, two listings, one create, and one delete for each older
    number.
    """
    check_tag_name(tag)
    if not _SNAPSHOT_ID.fullmatch(snapshot_id):
        raise ValueError(f"{snapshot_id!r} is not the full id of a snapshot")
    return _set(store, _dataset(store, name), tag, snapshot_id)


def untag(store: ObjectStore, name: str, tag: str) -> None:
    """Remove a tag, even if it is unreadable. `NotFound` if there is none.

    Cost: a get and a listing more than `tag`.
    """
    check_tag_name(tag)
    dataset = _dataset(store, name)
    found = read_tags(store, dataset, tag)
    if tag not in found.damaged:
        _present(found, dataset, tag)
    _set(store, dataset, tag, "")


def resolve(store: ObjectStore, name: str, tag: str) -> Tag:
    """Return the current value of `tag`.

    Raise `NotFound` if there is none, and `Corrupt` if it cannot be read. Two gets and one listing.
    """
    check_tag_name(tag)
    dataset = _dataset(store, name)
    found = read_tags(store, dataset, tag)
    if tag in found.damaged:
        raise Corrupt(
            f"{found.damaged[tag]}; set it again with `dlcmd snapshot tag`, "
            f"or remove it with `dlcmd snapshot untag` ({tag})"
        )
    return _present(found, dataset, tag)


def read_tags(
    store: ObjectStore, dataset: DatasetRef, tag: str | None = None
) -> NumberedListing[Tag]:
    """Return every tag below the dataset's name, or one of them.

    The listing includes unreadable and removed tags and those of removed datasets of that name. One
    listing and one get for each tag.
    """
    return list_present(store, tags_prefix(dataset.name), MAX_BYTES, Tag.decode, tag)


def current(found: NumberedListing[Tag], dataset: DatasetRef) -> list[Tag]:
    """Return the dataset's own tags in `found`, without removed ones."""
    return [tag for tag in found.values.values() if tag.dataset_id == dataset.id and not tag.gone]


def _set(store: ObjectStore, dataset: DatasetRef, tag: str, snapshot_id: str) -> Tag:
    """Create the next number and delete the older ones.

    A number that another tagger has deleted meanwhile could be created again, below the current
    one. So it counts only if no greater one is there after it was created.
    """
    while True:
        older = _numbers(store, dataset, tag)
        number = older[-1].number + 1 if older else 1
        draft = Tag(tag, number, dataset.id, time.time_ns(), snapshot_id)
        with suppress(AlreadyExists):  # another tagger was faster; the later number wins
            store.create(tag_key(dataset.name, tag, number), [draft.encode()])
            older = _numbers(store, dataset, tag)
            if all(entry.number <= number for entry in older):
                break
    for entry in older:
        if entry.number < draft.number:
            store.delete(entry.key)
    return draft


def _numbers(store: ObjectStore, dataset: DatasetRef, tag: str) -> tuple[NumberedObject, ...]:
    return list_numbers(store, tags_prefix(dataset.name), tag).get(tag, ())


def _dataset(store: ObjectStore, name: str) -> DatasetRef:
    found = find_dataset(store, name)
    if found is None:
        raise NotFound(f"there is no dataset {name!r}: `dlcmd dataset ls` lists the existing ones")
    return found


def _present(found: NumberedListing[Tag], dataset: DatasetRef, tag: str) -> Tag:
    for known in current(found, dataset):
        if known.name == tag:
            return known
    name = dataset.name
    raise NotFound(f"dataset {name} has no tag {tag}: see `dlcmd snapshot ls {name}`")
