"""The `-o` options of an fstab line: those of `dlcmd`, and those of mount(8), without effect."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from dieselfs.config.former_names import present_key
from dieselfs.errors import UsageError

FLAGS: Final = (
    "allow_other",
    "nonempty",
    "refresh",
    "no_index",
    "preload",
    "no_foreign_plans",
    "no_share",
    "ssd_warmup",
)
VALUES: Final = (
    *(
        "uid",
        "gid",
        "snapshot",
        "memory",
        "cache_memory",
        "prefill",
        "shuffle",
        "task",
        "job",
        "eviction",
        "patience",
        "front",
        "blob_cache",
        "threads",
    ),
    *("peers", "peer_listen", "peer_advertise", "peer_name", "peer_nodes"),
    *("secret_file", "cache_policy"),
    *("ssd", "ssd_size", "ssd_admission", "ssd_eviction"),
    *("ssd_policy", "ssd_shadow_policy", "ssd_write_budget", "ssd_buckets"),
    *("cache_cluster", "cache_cluster_secret_file", "cache_datasets"),
    *("record_trace", "record_trace_size"),
    *("store", "index", "profile"),
)
# A mount is read-only, without set-id programs and devices, whatever the options say. `rw` is the
# default of mount(8).
_WITHOUT_EFFECT: Final = frozenset(
    [
        "ro",
        "rw",
        "defaults",
        "default_permissions",
        "auto",
        "noauto",
        "user",
        "nouser",
        "users",
        "owner",
        "group",
        "nofail",
        "_netdev",
        "exec",
        "noexec",
        "suid",
        "nosuid",
        "dev",
        "nodev",
        "atime",
        "noatime",
        "relatime",
        "norelatime",
        "diratime",
        "nodiratime",
        "strictatime",
        "async",
        "sync",
        "loud",
        "silent",
    ]
)


def parse_mount_options(texts: Iterable[str]) -> dict[str, str]:
    """Return `a,b=c` lists as a dictionary with underscores in the names; flags have the value ''.

    Raises `UsageError` for an unknown option, a missing value, and a flag with a value.
    """
    options: dict[str, str] = {}
    for part in ",".join(texts).split(","):
        name, equals, value = part.partition("=")
        name = present_key(name.strip().replace("-", "_"))
        if name in VALUES and value:
            options[name] = value
        elif name in FLAGS and not equals:
            options[name] = ""
        elif (
            name
            and name not in _WITHOUT_EFFECT
            and not name.startswith(("x_", "X_mount", "comment"))
        ):
            raise _unknown(part, name)
    return options


def as_number(options: Mapping[str, str], name: str) -> int | None:
    """Return the value of an option that is a number, such as `uid`; None if it is not given.

    Raises `UsageError` for a value that is no number.
    """
    value = options.get(name)
    if value is None or value.isdecimal():
        return None if value is None else int(value)
    raise UsageError(f"-o {name}={value}: not a number", f"write for instance {name}=1000")


def _unknown(part: str, name: str) -> UsageError:
    if name in VALUES:
        return UsageError(f"-o {part}: a value is missing", f"write {name}=…")
    if name in FLAGS:
        return UsageError(f"-o {part}: takes no value", f"write {name}")
    from difflib import get_close_matches

    near = get_close_matches(name, (*FLAGS, *VALUES), n=1)
    return UsageError(
        f"-o {part}: unknown", f"did you mean {near[0]}" if near else "see `dlcmd mount --help`"
    )
