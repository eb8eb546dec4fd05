"""The file name of a kernel image.

Commands that only look at mounts read such names. They are not to import NumPy for it, which the
making of an image needs: 0.1 s of a start.
"""

from __future__ import annotations

import os
import re
from typing import Final

IMAGE_SUFFIX: Final = ".erofs"
_NAME: Final = re.compile(
    r"(?P<dataset>[A-Za-z0-9][A-Za-z0-9._-]*)-(?P<snapshot>[0-9]{1,20}-[0-9a-f]{32})"
    r"-u[0-9]{1,10}-g[0-9]{1,10}(-private)?-w[0-9]{1,9}-[0-9a-f]{32}" + re.escape(IMAGE_SUFFIX)
)


def image_name_parts(name: str) -> tuple[str, str] | None:
    """Return (dataset, snapshot id) of an image's path or file name; None for other names."""
    match = _NAME.fullmatch(os.path.basename(name))
    return (match["dataset"], match["snapshot"]) if match else None
