"""The mount: a dataset's snapshot as a read-only file system (EROFS or FUSE in front)."""
