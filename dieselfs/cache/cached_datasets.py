"""The datasets that this client lets SSDs cache, by flag, -o option, variable, profile or store."""

from __future__ import annotations

from chunkstore.ssd.policies.eligibility import SPELLING, Eligibility
from dieselfs.config import Config
from dieselfs.errors import ConfigError, UsageError


def cached_datasets(given: str | None, config: Config) -> Eligibility:
    """Return the rule of the flag, or else that of the configuration; without any, all datasets.

    Raises `UsageError` or `ConfigError` for patterns that make no sense.
    """
    setting = config.cache_datasets
    try:
        if given is not None:
            return Eligibility.parse(given)
        return Eligibility() if setting is None else Eligibility.parse(setting.value)
    except ValueError as error:
        if given is not None or setting is None:
            raise UsageError(f"--cache-datasets: {error}", f"write {SPELLING}") from error
        raise ConfigError(
            f"cache_datasets: {error} (from {setting.origin})", f"write {SPELLING}"
        ) from error
