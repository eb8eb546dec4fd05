"""The servers behind a front: of the blob, and of the FUSE tree."""
