"""The root service that mounts EROFS for ordinary users, and its client (docs/mountd.md).

The service is `dlcmd mountd`.
"""
