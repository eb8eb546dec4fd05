"""The mount: a dataset's snapshot as a read-only file system (pyfuse3, trio)."""

from dieselfs.fuse import fast_path as fast_path  # before anything imports pyfuse3
