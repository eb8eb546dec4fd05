"""The fronts of a mount: EROFS, EROFS over loop devices, FUSE, a pinned blob."""
