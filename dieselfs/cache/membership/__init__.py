"""The members of a task or a cache cluster, and the owner of each chunk."""
