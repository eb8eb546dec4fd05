"""The mount: a dataset's snapshot as a read-only file system (pyfuse3, trio)."""
