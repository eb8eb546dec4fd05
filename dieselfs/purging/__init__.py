"""DL_purge: chunks with holes are merged into new ones, and the old are deleted when nobody may read them any more."""
