"""Mounts of this machine: the kernel's table, and the ways to mount."""
