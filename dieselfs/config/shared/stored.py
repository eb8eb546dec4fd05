"""The settings in a store as a node reads them: one request, and the last ones known without it.

A node remembers the version that it read, in the user's cache folder. The next command asks for
this version by one get. It is gone if there is a newer one, and one listing and one get follow. In
a store without settings it is one listing. If the store does not answer, callers that can do
without it take the remembered version.
"""

from __future__ import annotations

import logging
import os
from contextlib import nullcontext, suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Final

import xxhash

from chunkstore.errors import Corrupt, Denied, NotFound, Unavailable
from chunkstore.store_settings import StoreSettings, newest_version, read_version
from chunkstore.stores.time_left import OperationEnds
from dieselfs.config import Config, cache_folder, with_stored

if TYPE_CHECKING:
    from chunkstore.stores.object_store import ObjectStore

log = logging.getLogger(__name__)

_LOOK_S: Final = 5.0
"""The wait for a store by a caller that can do without it."""


def completed_config(
    config: Config, store: ObjectStore, dataset: str | None = None, *, must_answer: bool = True
) -> Config:
    """Return the configuration, completed from the settings for the dataset and for the store.

    It costs one get, or one listing if nothing is set, and one request more after a change. Without
    `must_answer` a store that does not answer is waited for 5 s, and the settings that this user
    read last on this machine count. A user who may not read the settings goes on without them.
    Keys and values of a newer release are ignored. Each of these is logged in one line. Raises
    `Corrupt` and `Unavailable`.
    """
    if config.has_stored:
        return config
    known = _Known(config.store.value)
    try:
        with nullcontext() if must_answer else OperationEnds(_LOOK_S):
            found = known.read(store)
    except Denied as error:
        _warn(f"the settings of the store cannot be read, so none of them count: {error}")
        found = StoreSettings()
    except Unavailable:
        if must_answer:
            raise
        found = known.remembered()
        if found.number:
            _warn("the store does not answer: its settings are those that were read here last")
    return _completed(config, found, dataset)


def _completed(config: Config, found: StoreSettings, dataset: str | None) -> Config:
    if not found.number:
        return with_stored(config, [])
    from dieselfs.config.shared.values import usable

    layers: list[tuple[dict[str, str], str | None]] = []
    for name in (None,) if dataset is None else (dataset, None):
        values, others = usable(found.values(name), name)
        layers.append((values, name))
        if others:
            of = "the store" if name is None else f"dataset {name}"
            _warn(
                f"settings of {of} that this release does not know are ignored: {', '.join(others)}"
            )
    return with_stored(config, layers)


@cache
def _warn(line: str) -> None:
    """Log a line once in a process."""
    log.warning("%s", line)


class _Known:
    """The version of a store's settings that this user read last on this machine."""

    def __init__(self, url: str) -> None:
        self._file = cache_folder() / "settings" / xxhash.xxh3_64_hexdigest(os.fsencode(url))

    def read(self, store: ObjectStore) -> StoreSettings:
        """Return the current settings, and remember them."""
        before = self.remembered()
        if before.number:
            with suppress(NotFound):
                return read_version(store, before.number)
        found = newest_version(store)
        if found.number:
            self._remember(found)
        return found

    def remembered(self) -> StoreSettings:
        """Return what was read last; settings without a number if that is nothing."""
        try:
            number, _, data = self._file.read_bytes().partition(b"\n")
            return StoreSettings.decode(data, int(number))
        except (OSError, ValueError, Corrupt):
            return StoreSettings()

    def _remember(self, found: StoreSettings) -> None:
        part = Path(f"{self._file}.{os.getpid()}")
        with suppress(OSError):
            part.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            part.write_bytes(b"%d\n%b" % (found.number, found.encode()))
            part.replace(self._file)
