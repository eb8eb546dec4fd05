"""The whole index of a dataset, computed from its commits and the heads of its chunks.

It is a sort, not a replay (docs/decisions/0008).
"""

from metadata.rebuild.rebuilding import rebuild

__all__ = ["rebuild"]
