"""The former place of `dieselfs.cli.commands.mount`, for one release.

The supervisor of a mount that a former version started imports it, to see whether the installed
version can be started.
"""

import importlib

importlib.import_module("dieselfs.cli.commands.mount")
