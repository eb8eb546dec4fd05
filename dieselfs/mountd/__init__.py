"""The root service that mounts EROFS for ordinary users (`dlcmd mountd`), and its client:
docs/mountd.md.
"""
