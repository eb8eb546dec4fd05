"""The configured SSD tier: a folder on a local SSD and its settings (docs/decisions/0013).

Flags and code override the configuration (`DIESELFS_SSD`, … or a profile), which gives all other
settings. So all mounts, clients and commands of a node share one tier without further flags. In a
process, all users of one folder share one `SsdTier`.
"""

from __future__ import annotations

import atexit
import errno
import hashlib
import logging
import os
import threading
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, TypeAlias, TypeVar

from chunkstore.call_threads import CallThreads
from chunkstore.ssd.policy_choice import LRU, PolicyChoice
from chunkstore.ssd.segments import DEFAULT_SEGMENT_BYTES
from dieselfs.cache.node.task_folder import VARIABLE
from dieselfs.cache.ssd.byte_sizes import human_size, parse_rate, parse_size
from dieselfs.cache.ssd.options import (
    ADMISSIONS,
    NONE,
    POLICY_KEYS,
    AdmissionName,
    PolicyOptions,
    SsdOptions,
)
from dieselfs.config import Config, Setting, load_config
from dieselfs.errors import ConfigError, SsdUnavailable, UsageError

if TYPE_CHECKING:  # a mount without a tier does not load its parts
    from chunkstore.ssd.admission import Admission
    from chunkstore.ssd.segment_index import Order
    from chunkstore.ssd.segment_store import SegmentStore
    from chunkstore.ssd.tier import SsdTier

log = logging.getLogger(__name__)

OPENS_S: Final = 30.0

Name = TypeVar("Name", bound=str)
EVICTIONS: Final[tuple[Order, ...]] = ("lru", "fifo")
_SHARE_OF_FREE: Final = 0.8
"""The share of the free space that a tier without a configured size takes."""
_LEAST_FREE_BYTES: Final = 16 << 20
"""The least free space: below it a tier of that share would hold two regions at most."""
_ANOTHER_FOLDER: Final = "name a folder on a local SSD that is yours"
_LOOK_TIMEOUT_S: Final = 2.0
_YES: Final = ("1", "yes", "true", "on")
_NO: Final = ("0", "no", "false", "off")
_DRAIN_S: Final = 0.5
"""The time at the end of the process for what is still to be written."""


@dataclass(frozen=True, slots=True)
class SsdSettings:
    """The settings of an SSD tier. They can be pickled."""

    folder: Path
    budget_bytes: int | None = None
    """The size of the tier. A larger one that the folder has stays: `TierAccess.resize` changes it.

    None means the size with which the folder was last opened, or else a share of the free space.
    """
    admission: AdmissionName = "all"
    eviction: Order = "lru"
    warmup: bool = False
    """Load the dataset that is read in the background: `cache.warmup.background_warmup`."""
    only_looks: bool = False
    """`check` refuses a folder without a tier; a tier keeps its size, not `budget_bytes`.

    The folder may be mistyped, or its disk not mounted.
    """
    segment_bytes: int = DEFAULT_SEGMENT_BYTES
    choice: PolicyChoice = field(default_factory=PolicyChoice)
    """The cache policies, unless the folder names others (`chunkstore.ssd.policy_choice`)."""

    def open_segments(self) -> SegmentStore:
        """Open the segment store. Blocks; raises `OSError`, `lmdb.Error` or `ValueError`."""
        from chunkstore.ssd.limits_folder import LimitsFolder
        from chunkstore.ssd.segment_store import SegmentStore

        return SegmentStore(
            self.folder,
            index_folder(self.folder),
            self._budget_bytes(),
            segment_bytes=self.segment_bytes,
            order=self.eviction,
            limits_of=LimitsFolder(self.folder).of,
        )

    def open(self) -> SsdTier:
        """Return a new tier that opens itself in the background."""
        from chunkstore.ssd.admission import AdmitAll, RejectFirst
        from chunkstore.ssd.tier import SsdTier

        admission: Admission = RejectFirst() if self.admission == "reject-first" else AdmitAll()
        return SsdTier(self.open_segments, self.folder, admission, self.choice)

    def check(self) -> None:
        """Raise `ConfigError` for a folder that cannot be used, or too small a size.

        It is called where a user watches. An SSD that does not answer, or is full, is no error
        here.
        """
        try:
            problem = CallThreads("ssd-look", 1).run(self._problem, _LOOK_TIMEOUT_S)
        except TimeoutError:
            return
        if problem:
            raise ConfigError(f"the SSD tier {self.folder}: {problem[0]}", problem[1])

    def kept_size(self) -> str | None:
        """Return a message for the user if the folder keeps a larger size than these settings name.

        None if not, or if the SSD does not answer.
        """
        try:
            kept = CallThreads("ssd-look", 1).run(self._kept_bytes, _LOOK_TIMEOUT_S)
        except TimeoutError:
            return None
        if kept is None or self.budget_bytes is None:
            return None
        return (
            f"the SSD tier {self.folder} has {human_size(kept)} for all that use it, and "
            f"{human_size(self.budget_bytes)} would evict chunks of others"
        )

    def _kept_bytes(self) -> int | None:
        """Return the folder's size if it is larger than `budget_bytes`."""
        if self.budget_bytes is None or self.only_looks:
            return None
        with suppress(OSError, ValueError):  # a new folder, or a damaged file that is replaced
            kept = int((self.folder / "budget").read_text())
            return kept if kept > self.budget_bytes else None
        return None

    def _problem(self) -> tuple[str, str] | None:
        """Return what is wrong and what to do."""
        from chunkstore.ssd.region_files import RegionFiles

        if self.only_looks and not (self.folder / "budget").exists():
            return "there is no tier in this folder", (
                "mount its disk, or name its folder with --ssd; a mount with --ssd, `dlcmd warmup` "
                "or --ssd-size makes a new tier"
            )
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            return error.strerror or str(error), _ANOTHER_FOLDER
        if not os.access(self.folder, os.W_OK | os.X_OK):
            return "this user may not write there", _ANOTHER_FOLDER
        try:
            RegionFiles(self.folder, self._budget_bytes(), self.segment_bytes)
        except ValueError as error:
            return str(error), "give the tier more with --ssd-size"
        except OSError as error:
            log.debug("cannot open the SSD tier %s now: %s", self.folder, error)
        return None

    def _budget_bytes(self) -> int | None:
        """Return the size to open the tier with; None for its former size.

        Raises `OSError` for a new folder on a full disk, if no size is configured.
        """
        has_one = (self.folder / "budget").exists()
        if has_one and self.only_looks:
            return None
        if self._kept_bytes() is not None:
            log.warning("%s, so it keeps its size", self.kept_size())
            return None
        if has_one or self.budget_bytes is not None:
            return self.budget_bytes
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        disk = os.statvfs(self.folder)
        free_bytes = disk.f_bavail * disk.f_frsize
        if free_bytes < _LEAST_FREE_BYTES:
            raise OSError(
                errno.ENOSPC, f"the disk has {human_size(free_bytes)} free, too little for a tier"
            )
        return int(free_bytes * _SHARE_OF_FREE)


def configured(config: Config) -> SsdOptions:
    """Return the options from variables and profile; without a folder, none of them count.

    Raises `ConfigError`.
    """
    if config.ssd is None:
        return SsdOptions()
    return SsdOptions(
        config.ssd.value,
        size_of(config.ssd_size),
        None if config.ssd_admission is None else config.ssd_admission.value,
        None if config.ssd_eviction is None else config.ssd_eviction.value,
        None if config.ssd_warmup is None else is_yes(config.ssd_warmup),
        PolicyOptions(*(_written(getattr(config, key)) for key in POLICY_KEYS)),
    )


def _written(setting: Setting | None) -> str | None:
    return None if setting is None else setting.value


def chosen_tier(choice: SsdChoice, config: Config | None = None) -> SsdSettings | None:
    """Return the tier that the caller chose, or that of the configuration.

    Without one, variables and the default profile count. Raises `ConfigError`.
    """
    if choice == "configured":
        return ssd_settings(configured(config or load_config()))
    return choice


def ssd_settings(options: SsdOptions) -> SsdSettings | None:
    """Return the settings; None for no tier. Raises `UsageError` and `ConfigError`."""
    if options.folder is None:
        if options != SsdOptions():
            raise UsageError("an SSD tier needs a folder", "add --ssd FOLDER, or set DIESELFS_SSD")
        return None
    if options.folder == NONE:
        return None
    folder = Path(os.path.expanduser(options.folder))
    if not folder.is_absolute():
        raise ConfigError(
            f"{options.folder}: the folder of an SSD tier is an absolute path",
            f"write {Path.cwd() / folder}",
        )
    return SsdSettings(
        folder,
        options.size_bytes,
        _one_of(ADMISSIONS, options.admission or "all", "admission"),
        _one_of(EVICTIONS, options.eviction or "lru", "eviction"),
        bool(options.warmup),
        choice=_chosen_policies(options),
    )


def _chosen_policies(options: SsdOptions) -> PolicyChoice:
    given = options.policies
    if options.admission is not None and (given.policy or LRU) != LRU:
        raise UsageError(
            f"--ssd-admission {options.admission} and --ssd-policy {given.policy}: a policy "
            "decides what the SSD tier admits",
            "leave out one of them (also DIESELFS_SSD_ADMISSION, DIESELFS_SSD_POLICY and their "
            "keys of the profile and the store count)",
        )
    return changed_choice(PolicyChoice(), given)


def changed_choice(former: PolicyChoice, given: PolicyOptions) -> PolicyChoice:
    """Return a choice with the options that are given in place of the former ones.

    The word `none` takes a shadow policy or a write budget away. Raises `UsageError`.
    """
    shadow, budget = former.shadow, former.write_budget
    if given.shadow is not None:
        shadow = None if given.shadow == NONE else given.shadow
    if given.write_budget is not None:
        budget = None if given.write_budget == NONE else parse_rate(given.write_budget)
    try:
        return PolicyChoice(
            given.policy or former.policy, shadow, budget, given.buckets or former.buckets
        )
    except ValueError as error:
        said, _, wanted = str(error).rpartition("; write ")
        raise UsageError(said or wanted, f"write {wanted}" if said else None) from error


SsdChoice: TypeAlias = SsdSettings | Literal["configured"] | None
"""A tier, `"configured"` (by variables and the default profile), or none."""


def index_folder(folder: Path) -> Path:
    """Return the folder of a tier's index.

    It is in shared memory, but not among the folders of tasks, which are deleted when they end.
    """
    base = Path(os.environ.get(VARIABLE) or "/dev/shm").absolute()
    name = hashlib.sha256(os.fsencode(os.path.realpath(folder))).hexdigest()[:16]
    return base / f"dieselfs-ssd-{os.geteuid()}" / name


def shared_tier(settings: SsdSettings) -> SsdTier:
    """Return this process's tier of a folder; the first caller's settings count.

    The tier ends with the process.
    """
    with _opening:
        tier = _tiers.get(settings.folder)
        if tier is None:
            tier = _tiers[settings.folder] = settings.open()
        return tier


def open_tier(settings: SsdSettings) -> SsdTier:
    """Return this process's tier, open; raise `SsdUnavailable` with the reason."""
    tier = shared_tier(settings)
    if not tier.wait_until_open_or_failed(OPENS_S):
        raise unavailable(settings, tier)
    return tier


def unavailable(settings: SsdSettings, tier: SsdTier) -> SsdUnavailable:
    """Return the error for a tier that is out of service, with the reason."""
    reason = tier.statistics().reason or "its folder does not answer"
    return SsdUnavailable(f"the SSD tier {settings.folder} is out of service: {reason}")


_tiers: dict[Path, SsdTier] = {}
_opening = threading.Lock()


def end_tiers() -> None:
    """Close this process's tiers, after a moment for what is still to be written.

    The end of the process calls it.
    """
    with _opening:
        ended = list(_tiers.values())
        _tiers.clear()
    for tier in ended:
        tier.wait_until_written(_DRAIN_S)
        tier.close(_DRAIN_S)


def _after_fork() -> None:
    """Replace the lock in a forked child; the tiers renew themselves."""
    global _opening
    _opening = threading.Lock()


atexit.register(end_tiers)
os.register_at_fork(after_in_child=_after_fork)


def size_of(setting: Setting | None) -> int | None:
    """Return the bytes that a setting means, None for none; raise `ConfigError` with its origin."""
    if setting is None:
        return None
    try:
        return parse_size(setting.value)
    except UsageError as error:
        raise ConfigError(f"{error} (from {setting.origin})", error.hint) from error


def is_yes(setting: Setting) -> bool:
    """Return whether a setting means yes; raise `ConfigError` if it is neither yes nor no."""
    word = setting.value.lower()
    if word not in (*_YES, *_NO):
        raise ConfigError(
            f"{setting.value!r} is neither yes nor no (from {setting.origin})", "write 1 or 0"
        )
    return word in _YES


def _one_of(names: tuple[Name, ...], wanted: str, what: str) -> Name:
    for name in names:
        if name == wanted:
            return name
    raise UsageError(
        f"{wanted!r} is not an {what} policy of an SSD tier", f"write {' or '.join(names)}"
    )
