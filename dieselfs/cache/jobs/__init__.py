"""Jobs: their names, and what their readers publish about the chunks that they will read.

`docs/ssd-tier.md` describes them for people, docs/decisions/0030 says why they are so.
"""
