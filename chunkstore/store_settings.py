"""The settings that all nodes of a store share: one value, in create-only versions.

A version is an object `config/settings/<number>`; the greatest number is valid
(`numbered_objects`). A writer creates the number after the one that it read. So of two writers one
loses, reads again and repeats its change: no change is lost. It then deletes the smaller numbers.
The meaning of keys and values is none of this module's business. It keeps those that it does not
know. docs/chunk-format.md defines the bytes.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from chunkstore.errors import AlreadyExists, Corrupt, NoStoreYet, NotFound, Unavailable
from chunkstore.numbered_objects import NumberedObject, list_numbers, read_bounded
from chunkstore.object_keys import SETTINGS_NAME, SETTINGS_PREFIX, settings_key
from chunkstore.sealed_object import sealed, unsealed
from chunkstore.stores.object_store import ObjectStore

MAGIC: Final = b"DIESELCF"
FORMAT_VERSION: Final = 1
MAX_BYTES: Final = 1 << 20
_FIXED: Final = struct.Struct("<8sHHIQq")
"""Magic, version, reserved, length of the JSON, number, time."""
_TRIES: Final = 50

Values = Mapping[str, Any]
"""Key -> value. This release writes text alone."""


@dataclass(frozen=True, slots=True)
class StoreSettings:
    """One version of the settings."""

    number: int = 0
    """The number of the version; 0: nothing has been set."""
    time_ns: int = 0
    """The time of the change, by the writer's clock."""
    store: Values = field(default_factory=dict)
    """The settings for the whole store."""
    datasets: Mapping[str, Values] = field(default_factory=dict)
    """Dataset -> the settings for it alone."""

    def values(self, dataset: str | None) -> Values:
        """Return the settings for a dataset, or for the store if it is None."""
        return self.store if dataset is None else self.datasets.get(dataset, {})

    def replaced(self, dataset: str | None, values: Values) -> StoreSettings:
        """Return these settings with other values for a dataset, or for the store."""
        if dataset is None:
            return StoreSettings(self.number, self.time_ns, values, self.datasets)
        datasets = {**self.datasets, dataset: values}
        kept = {name: found for name, found in datasets.items() if found}
        return StoreSettings(self.number, self.time_ns, self.store, kept)

    def encode(self) -> bytes:
        """Return the bytes of the object."""
        import json

        content = {"datasets": self.datasets, "store": self.store}
        text = json.dumps(content, sort_keys=True, separators=(",", ":")).encode()
        fixed = (MAGIC, FORMAT_VERSION, 0, len(text), self.number, self.time_ns)
        body = _FIXED.pack(*fixed) + text
        return sealed(body)

    @classmethod
    def decode(cls, data: bytes, number: int) -> StoreSettings:
        """Return the settings in `data`; raise `Corrupt` if it is not that version of them."""
        import json

        what, kind = f"{settings_key(number)} (the settings of the store)", "a version of them"
        body, fields = unsealed(data, _FIXED, MAGIC, FORMAT_VERSION, what, kind, f"; {_REPAIR}")
        _, length, found, time_ns = fields
        if found != number or len(body) != _FIXED.size + length:
            raise Corrupt(f"{what} has the content of another object; {_REPAIR}")
        try:
            content = json.loads(body[_FIXED.size :])
            return cls(number, time_ns, dict(content["store"]), dict(content["datasets"]))
        except (ValueError, KeyError, TypeError) as error:
            raise Corrupt(f"{what} cannot be decoded ({error}); {_REPAIR}") from error


_REPAIR: Final = "remove all settings with `dlcmd config unset --all`, then set them again"


def newest_version(store: ObjectStore) -> StoreSettings:
    """Return the current settings; those without a number if there are none.

    Costs one listing, and one get if there are settings. Raises `Corrupt`.
    """
    for _ in range(_TRIES):
        present = _versions(store)
        if not present:
            return StoreSettings()
        try:
            return read_version(store, present[-1].number)
        except NotFound:  # another writer has created the next one and deleted this
            continue
    raise Unavailable(f"cannot read {SETTINGS_PREFIX}: it changes too quickly; try again")


def read_version(store: ObjectStore, number: int) -> StoreSettings:
    """Return one version by one get; raise `NotFound` if it is gone, and `Corrupt`."""
    return StoreSettings.decode(read_bounded(store, settings_key(number), MAX_BYTES), number)


def change(store: ObjectStore, edit: Callable[[StoreSettings], StoreSettings]) -> StoreSettings:
    """Store what `edit` makes of the current settings, and return it.

    `edit` is called again if another writer was faster, so it may be repeated. Nothing is stored if
    it changes nothing. Raises `Corrupt` if the current settings cannot be read, and `ValueError` if
    the new ones are too long.
    """
    for _ in range(_TRIES):
        current = newest_version(store)
        wanted = edit(current)
        if wanted == current:
            _delete_others(store, current.number)
            return current
        if created := _created(store, current.number + 1, wanted):
            return created
    raise Unavailable("the settings of the store change too quickly; try again")


def clear(store: ObjectStore) -> None:
    """Remove all settings, also those that cannot be read."""
    while True:
        present = _versions(store)
        if not present or _created(store, present[-1].number + 1, StoreSettings()):
            return


def _created(store: ObjectStore, number: int, wanted: StoreSettings) -> StoreSettings | None:
    """Create a version and delete the older ones; return None if another writer was faster.

    A number that was deleted meanwhile could be created again, below the current one. So the
    version counts only if no greater one is there after it was created.
    """
    made = StoreSettings(number, time.time_ns(), wanted.store, wanted.datasets)
    data = made.encode()
    if len(data) > MAX_BYTES:
        raise ValueError(f"the settings of a store have at most {MAX_BYTES} bytes")
    try:
        store.create(settings_key(number), [data])
    except AlreadyExists:
        return None
    return made if _delete_others(store, number) else None


def _delete_others(store: ObjectStore, number: int) -> bool:
    """Delete what is older than the greatest version; return whether that has this number."""
    present = _versions(store)
    for entry in present[:-1]:
        store.delete(entry.key)
    return not present or present[-1].number <= number


def _versions(store: ObjectStore) -> tuple[NumberedObject, ...]:
    try:
        return list_numbers(store, SETTINGS_PREFIX, SETTINGS_NAME).get(SETTINGS_NAME, ())
    except NoStoreYet:
        return ()
