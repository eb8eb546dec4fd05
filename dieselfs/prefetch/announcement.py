"""The announcement of a plan to a mount.

It writes the plan's file, looks up the file's name in the mount's control directory, and reads
whether the mount accepted it. A mount says in `.dieselfs/dataset.json` under `node_memory` where
its task's folder is; a mount without this key takes no plans.

That folder is the mount's user's alone, and in memory that a container may not share. A reader that
cannot write there tells its plan through the mount instead (`foreign_plan`).

Reading works without a plan too, only slower. So a failure here is at most a warning.
"""

from __future__ import annotations

import json
import os
import threading
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Protocol

from dieselfs.prefetch.foreign_plan import ForeignPlanFile, reason_of
from dieselfs.prefetch.plan_file import PlanFile, ReadingPlan, write_plan

CONTROL_FOLDER: Final = ".dieselfs"
"""The control directory in the root of a mount.

`dieselfs.fuse.mounts.control_names` has the name too, but cannot be imported without FUSE.
"""
DATASET_DOCUMENT: Final = "dataset.json"
SNAPSHOT_DOCUMENT: Final = "snapshot"
PLAN_FOLDER: Final = "plan"
_NODE_MEMORY: Final = "node_memory"

_warned: set[str] = set()
_warned_lock = threading.Lock()


class Published(Protocol):
    """A plan that something prefetches for its reader: a `PlanFile` or a `ForeignPlanFile`."""

    @property
    def id(self) -> str: ...

    position: int

    def remove(self) -> None: ...


def announce(
    mount_root: Path, plan: ReadingPlan, position: int = 0, after: str = ""
) -> Published | None:
    """Have a mount follow `plan` from `position` on, or when the plan whose id is `after` ends.

    Return the published plan; the caller moves its position and removes it. Return None if this
    mount follows no plans or refused this one. The reason for a refusal is given as a warning, once
    in a process.
    """
    task_folder = task_folder_of(mount_root)
    if task_folder is None:
        return None
    file: PlanFile | ForeignPlanFile
    try:
        file = write_plan(task_folder, plan, position=position, after=after)
        answer = _answer(mount_root, file.id)
        if answer.get("found") is False:
            file.remove()
            raise FileNotFoundError(f"{task_folder} is another folder for the mount")
    except OSError as error:
        told = _tell(mount_root, plan, position, after, error)
        if told is None:
            return None
        file, answer = told, _answer(mount_root, told.name)
    if not answer.get("accepted"):
        file.remove()
        if not answer:
            return None
        hint = f" ({answer['hint']})" if answer.get("hint") else ""
        reason = answer.get("error", "no reason given")
        _warn(f"{mount_root} does not prefetch the plan: {reason}{hint}")
        return None
    return file


def _tell(
    mount_root: Path, plan: ReadingPlan, position: int, after: str, why: OSError
) -> ForeignPlanFile | None:
    """Tell a plan through the mount; `why` says why its file cannot be written."""
    folder = mount_root / CONTROL_FOLDER / PLAN_FOLDER
    told = ForeignPlanFile(
        folder, plan, after, lambda name: bool(_answer(mount_root, name).get("accepted"))
    )
    try:
        told.tell(position)
    except OSError as error:
        _warn(
            f"cannot write the plan for the mount {mount_root}: {why}; and it does not accept it "
            f"through the mount: {reason_of(error)}"
        )
        return None
    return told


def task_folder_of(mount_root: Path) -> Path | None:
    """Return the folder of a mount's node memory; None if it has none or is no mount."""
    folder = mount_document(mount_root).get(_NODE_MEMORY)
    return Path(folder) if isinstance(folder, str) and folder else None


def mount_document(mount_root: Path) -> Mapping[str, Any]:
    """Return the mount's description of itself; empty if this is no mount's root."""
    return _document(mount_root / CONTROL_FOLDER / DATASET_DOCUMENT)


def mount_above(path: str | os.PathLike[str]) -> Path | None:
    """Return the root of the mount in which `path` lies, or None.

    `path` need not exist. Symbolic links are followed.
    """
    resolved = Path(os.path.realpath(path))
    for folder in (resolved, *resolved.parents):
        if mount_document(folder):
            return folder
    return None


def _answer(mount_root: Path, name: str) -> Mapping[str, Any]:
    """Look up a plan's name and return the mount's answer; empty if the mount takes no plans."""
    return _document(mount_root / CONTROL_FOLDER / PLAN_FOLDER / name)


def _document(path: Path) -> Mapping[str, Any]:
    try:
        document = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return document if isinstance(document, dict) else {}


def _warn(text: str) -> None:
    with _warned_lock:
        if text in _warned:
            return
        _warned.add(text)
    warnings.warn(text, RuntimeWarning, stacklevel=3)
