"""Cache policies that know the jobs: which segments the SSD tier admits, and keeps.

The design follows Tectonic-Shift §5 (docs/decisions/0029). The modules are pure: they have no
clock, no threads and no I/O, and callers give the time.
"""
