"""The client library: libDIESEL's calls (DIESEL Table 3).

`client` has the calls. Behind them, `lookup` answers names from the index or a snapshot,
`memory_reading` reads through the node's memory, and `writing` packs and commits.
"""

from dieselfs.client.client import Client, connect
from dieselfs.client.path_arguments import DatasetPath, Inodes
from dieselfs.client.statistics import ClientStatistics

__all__ = ["Client", "ClientStatistics", "DatasetPath", "Inodes", "connect"]
