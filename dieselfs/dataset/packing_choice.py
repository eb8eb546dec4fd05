"""The settings that a writer packs with: those that it was given, else those of the dataset."""

from __future__ import annotations

from dataclasses import dataclass

from chunkstore.commit_log import BIRTH_GENERATION
from chunkstore.errors import Corrupt
from chunkstore.keep_together import KeepTogether
from chunkstore.packing_settings import Order, PackingSettings
from dieselfs.dataset.dataset import Dataset
from dieselfs.errors import Refused


@dataclass(frozen=True, slots=True)
class PackingChoice:
    """The settings that a caller gives; None for the dataset's."""

    target_bytes: int | None = None
    order: Order | None = None
    keep_together: KeepTogether | None = None

    def over(self, settings: PackingSettings) -> PackingSettings:
        """Return `settings` with what was given in place of them."""
        return PackingSettings(
            settings.target_bytes if self.target_bytes is None else self.target_bytes,
            settings.order if self.order is None else self.order,
            settings.keep_together if self.keep_together is None else self.keep_together,
        )

    @property
    def is_whole(self) -> bool:
        """True if nothing is left to the dataset."""
        return None not in (self.target_bytes, self.order, self.keep_together)


def remembered_packing(dataset: Dataset) -> PackingSettings | None:
    """Return the settings in the dataset's first commit; None if an older release created it.

    Costs one get. Raises `Refused` if they make no sense.
    """
    record = dataset.log.read(BIRTH_GENERATION).packing
    try:
        return PackingSettings.decode(record) if record else None
    except Corrupt as error:
        raise Refused(
            f"the packing settings that dataset {dataset.ref.name} remembers cannot be used: "
            f"{error}",
            "give all of them (put: --chunk-size, --order and --keep-together; purge: --chunk-size "
            "and --keep-together; Client.connect: target_bytes, open_chunks and keep_together), or "
            "use the release that created the dataset",
        ) from error


def packing_settings(dataset: Dataset, given: PackingChoice) -> PackingSettings:
    """Return the settings to pack with. Raises `Refused` if the dataset's are needed and damaged.

    Datasets of older releases have the defaults.
    """
    if given.is_whole:
        return given.over(PackingSettings())
    return given.over(remembered_packing(dataset) or PackingSettings())
