"""The options of the trace recorder, as given by flags, -o options, variables or a profile."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from dieselfs.config import Config
from dieselfs.errors import UsageError

if TYPE_CHECKING:
    from dieselfs.cache.advice.recorder import TraceSettings


@dataclass(frozen=True, slots=True)
class TraceOptions:
    """The options as written; None for an absent one."""

    file: str | None = None
    size_bytes: int | None = None

    def otherwise(self, other: TraceOptions) -> TraceOptions:
        """Return these options, completed from `other`."""
        size = other.size_bytes if self.size_bytes is None else self.size_bytes
        return TraceOptions(self.file or other.file, size)


def typed_options(file: str | None, size_bytes: int | None) -> TraceOptions:
    """Return options typed at a prompt, where a file may be relative to the current folder."""
    typed = None if not file else os.path.abspath(os.path.expanduser(file))
    return TraceOptions(typed, size_bytes)


def trace_settings(given: TraceOptions, config: Config) -> TraceSettings | None:
    """Return the settings of the recorder; None: nothing is recorded.

    Raises `UsageError` for a size without a file and for an empty size, `LocalFileError` if the
    file cannot be created.
    """
    from dieselfs.cache.ssd.settings import size_of

    file = None if config.record_trace is None else config.record_trace.value
    options = given.otherwise(TraceOptions(file, size_of(config.record_trace_size)))
    if options.file is None:
        if given.size_bytes is not None:
            raise UsageError("--record-trace-size without a file", "add --record-trace FILE")
        return None
    from dieselfs.cache.advice.recorder import DEFAULT_TRACE_BYTES, TraceSettings

    path = Path(os.path.expanduser(options.file))
    if not path.is_absolute():
        raise UsageError(
            f"{options.file}: the file of a trace is an absolute path", f"write {Path.cwd() / path}"
        )
    size = DEFAULT_TRACE_BYTES if options.size_bytes is None else options.size_bytes
    settings = TraceSettings(path, size)
    settings.check()
    return settings
