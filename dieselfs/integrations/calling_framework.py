"""Training frameworks on the call stack that would lose samples.

A sampler is handed from wrapper to wrapper and cannot ask them what they do with its indices. Two
kinds of wrapper lose samples without a word, so the sampler looks for them up the stack: once when
an iteration begins, and once when a state is loaded. The result only decides about an error. The
names are those of public and long-lived classes; a framework that renames them is not noticed.
"""

from __future__ import annotations

import sys
from collections.abc import Collection
from types import FrameType
from typing import Final

_DEALERS: Final = {
    ("accelerate.data_loader", "BatchSamplerShard"),  # every n-th batch for each rank
    ("accelerate.data_loader", "DataLoaderDispatcher"),  # rank 0 reads for all
    ("lightning.fabric.utilities.distributed", "_DatasetSamplerWrapper"),  # every n-th index
    ("lightning_fabric.utilities.distributed", "_DatasetSamplerWrapper"),
}
_COUNTERS: Final = {
    # It ends an epoch after as many batches as a whole one has, less those before the checkpoint.
    ("lightning.pytorch.loops.fit_loop", "_FitLoop"),
    ("pytorch_lightning.loops.fit_loop", "_FitLoop"),
}


def batch_dealer() -> str | None:
    """Return the caller that deals the batches of a sampler out among ranks, if there is one."""
    return _caller_among(_DEALERS)


def batch_counter() -> str | None:
    """Return the caller that ends an epoch at a number of batches, if there is one."""
    return _caller_among(_COUNTERS)


def _caller_among(classes: Collection[tuple[str, str]]) -> str | None:
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        found = frame.f_globals.get("__name__", ""), frame.f_code.co_qualname.split(".")[0]
        if found in classes:
            return ".".join(found)
        frame = frame.f_back
    return None
