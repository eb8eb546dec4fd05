"""The quotas that an allocator gives to datasets on a tier: one small file for all processes.

The file `<tier>/allocated.json` is written by every process of the node that learns of a change.
So processes that know of no allocator obey too, and a quota outlasts them all.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Mapping
from pathlib import Path

log = logging.getLogger(__name__)


class AllocatedQuotas:
    """The file. An unreadable one counts as missing: nothing is allocated."""

    def __init__(self, tier: Path) -> None:
        self._path = tier / "allocated.json"
        self._is_strange = False

    def read(self) -> dict[bytes, int]:
        """Return the bytes that datasets may use, by their ids."""
        try:
            quotas = json.loads(self._path.read_text())
            found = {bytes.fromhex(id): int(size) for id, size in quotas.items()}
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, TypeError, AttributeError) as error:
            if not self._is_strange:
                log.warning("the quotas in %s are not obeyed: %s", self._path, error)
            self._is_strange = True
            return {}
        self._is_strange = False
        return found

    def write(self, quotas: Mapping[bytes, int]) -> None:
        """Replace the quotas of all datasets, if they differ; failures are logged.

        Several processes may do so at a time: each has just learned of the newest quotas.
        """
        if quotas == self.read():
            return
        temporary = self._path.with_name(f".{os.urandom(8).hex()}")
        try:
            temporary.write_text(json.dumps({id.hex(): size for id, size in quotas.items()}))
            os.rename(temporary, self._path)
        except OSError as error:
            log.warning("cannot keep the quotas that were allocated: %s", error)
