"""The rule for the targets of symbolic links: a link leads nowhere but below the tree it is in.

A link is contained if its target is relative, has `..` in front only, and no more of them than
directories lie between the tree's top and the link. Then a walk that follows contained links never
leaves the tree, however many it follows: each one begins in the directory that it lies in, and
climbs at most to the top. A `..` after a name has no such bound, because the name may be a link
itself. So the rule needs a path and a target, and no look at the disk.
"""

from __future__ import annotations

from chunkstore.chunk_format import MAX_TARGET_BYTES


def target_problem(target: bytes, depth: int) -> str | None:
    """Return why a link is not contained in its tree, None if it is.

    `depth` is the number of directories between the top of the tree and the link: 0 for a link that
    lies in the top itself.
    """
    if not 1 <= len(target) <= MAX_TARGET_BYTES or b"\0" in target:
        return f"its target does not have 1 to {MAX_TARGET_BYTES} bytes without NUL"
    if target.startswith(b"/"):
        return "its target is absolute"
    climbs, has_name = 0, False
    for component in target.split(b"/"):
        if component == b"..":
            if has_name:
                return "its target has `..` after a name"
            climbs += 1
        elif component not in (b"", b"."):
            has_name = True
    return "its target leads out of the tree" if climbs > depth else None
