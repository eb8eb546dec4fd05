"""The chunk store: chunks, commits, tags and leases in an object store."""
