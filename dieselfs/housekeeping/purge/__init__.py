"""DL_purge: merge chunks with holes into new chunks, and delete the retired ones.

A retired chunk is deleted when no snapshot, tag or lease needs it any more.
"""
