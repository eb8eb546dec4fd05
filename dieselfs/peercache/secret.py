"""The secret that the nodes of a task prove to each other.

It comes in the environment (`DIESELFS_TASK_SECRET`) or in a file that is its owner's alone (mode 0600); never in arguments, logs or Redis.
"""

from __future__ import annotations

import hmac
from dataclasses import dataclass, field
from typing import Final

VARIABLE: Final = "DIESELFS_TASK_SECRET"
FILE_VARIABLE: Final = "DIESELFS_TASK_SECRET_FILE"
MIN_BYTES: Final = 16


@dataclass(frozen=True, slots=True)
class TaskSecret:
    """Compares by value, shows nothing."""

    value: bytes = field(repr=False)

    def proof(self, role: bytes, transcript: bytes) -> bytes:
        """32 bytes (HMAC-SHA256) that only who knows the secret can make for this role and transcript."""
        return hmac.digest(self.value, role + b"\0" + transcript, "sha256")
