"""The simulator: jobs that read through a cache which a policy divides, without a clock or files.

Two engines move the jobs. The fluid one counts bytes and serves clusters; the one of single items
keeps real caches, and shows that the fluid one is right.
"""
