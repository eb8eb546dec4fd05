"""Names of the control directory and its files: what a mount offers, and what its users open."""

from __future__ import annotations

from typing import Final

CONTROL_NAME: Final = b".dieselfs"
"""The name in the root, where it hides a file or directory of that name in the dataset."""
CONTROL_FOLDER: Final = CONTROL_NAME.decode()
DATASET_NAME: Final = b"dataset.json"
STATISTICS_NAME: Final = b"stats.json"
REFRESH_NAME: Final = b"refresh.json"
SNAPSHOT_NAME: Final = b"snapshot"
"""The snapshot file itself, for readers that cannot open the one that `dataset.json` names."""
SHUFFLE_NAME: Final = b"shuffle"
PLAN_NAME: Final = b"plan"
WHY_NAME: Final = b"why"
README_NAME: Final = b"README"
