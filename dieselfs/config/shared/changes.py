"""Changes of the settings in a store: what is wrong is refused, and nothing is stored then."""

from __future__ import annotations

from chunkstore.store_settings import StoreSettings, change
from chunkstore.stores.object_store import ObjectStore
from dieselfs.config.shared.values import check_together, check_value, known_key
from dieselfs.dataset.dataset import existing_dataset
from dieselfs.errors import ConfigError, UsageError


def set_shared(
    store: ObjectStore, key: str, value: str, dataset: str | None = None
) -> StoreSettings:
    """Set a key for all nodes of the store, or for a dataset; return the settings with it.

    Raises `ConfigError` for an unknown key or a bad value, and `DatasetNotFound`. Of two callers at
    once both changes are kept. Costs two listings, one get and one create; a dataset costs one get.
    """
    key = known_key(key, dataset)
    check_value(key, value)
    if dataset is not None:
        existing_dataset(store, dataset)

    def edit(found: StoreSettings) -> StoreSettings:
        changed = found.replaced(dataset, {**found.values(dataset), key: value})
        for name in (None, *changed.datasets):
            check_together({**changed.store, **changed.values(name)})
        return changed

    try:
        return change(store, edit)
    except ConfigError:
        raise
    except ValueError as error:  # all values together are too long
        raise UsageError(f"{key}: {error}", "unset what is not needed") from error


def unset_shared(store: ObjectStore, key: str | None, dataset: str | None = None) -> bool:
    """Remove a key, or all keys if it is None, of the store or of a dataset.

    Returns False if nothing was set. A key of another release can be removed too.
    """
    was_set = False

    def edit(found: StoreSettings) -> StoreSettings:
        nonlocal was_set
        values = found.values(dataset)
        kept = {} if key is None else {name: values[name] for name in values if name != key}
        was_set = len(kept) < len(values)
        return found.replaced(dataset, kept)

    change(store, edit)
    return was_set
