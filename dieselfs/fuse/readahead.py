"""How far the kernel reads ahead in a file of the mount: large files are read in large requests.

The kernel's own 128 KiB make eight requests of each MiB. 1 MiB, the largest request there is, took 5–10% less time for files of 2 MiB
in node memory, measured by hand, and matters more where Python or a store answers (docs/decisions/0005-fast-path.md).
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Final

from dieselfs.fuse.mount_table import entry_at

log = logging.getLogger(__name__)

READAHEAD_KIB: Final = 1024
_DEVICES: Final = Path("/sys/class/bdi")


def widen_readahead(mountpoint: Path) -> None:
    """Set it for what is mounted at the resolved `mountpoint`; needs root, and is left as it is without.

    Call it after the mount has answered: its first answer sets what holds until then.
    """
    entry = entry_at(mountpoint)
    if entry is None:
        return
    major, minor = entry.device
    try:
        (_DEVICES / f"{major}:{minor}" / "read_ahead_kb").write_text(str(READAHEAD_KIB))
    except OSError as error:
        log.info("files are read in requests of 128 KiB: %s", error)
