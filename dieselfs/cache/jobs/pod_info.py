"""The pod of this process, as the downward API of Kubernetes tells it: a file of annotations.

Kubelet writes the file and replaces it when an annotation changes, within a minute or so. It has a
line `key="value"` for each annotation. The pod's labels may lie beside it, in a file `labels`.
Reading it needs no access to the API server.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from dieselfs.cache.jobs.job_name import is_job_name

log = logging.getLogger(__name__)

PREFIX_VARIABLE: Final = "DIESELFS_ANNOTATION_PREFIX"
PREFIX: Final = "dieselfs.io/"
"""The prefix of annotations without the variable."""
LABELS: Final = "labels"
JOB_LABELS: Final = (
    "training.kubeflow.org/job-name",
    "batch.kubernetes.io/job-name",
    "job-name",
)
"""The labels by which controllers name the job of a pod; the first one that is there counts."""
MAX_FILE_BYTES: Final = 1 << 20
"""The API server refuses more than 256 KiB of annotations; escapes make them longer."""

_LINE: Final = re.compile(r'([^=\s"]+)="((?:[^"\\]|\\.)*)"')
_ESCAPE: Final = re.compile(
    r"((?:\\x[0-9a-f]{2})+)|\\u([0-9a-f]{4})|\\U([0-9a-f]{8})|\\(.)", re.DOTALL
)
_LETTERS: Final = {"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}


def annotation_prefix(environment: Mapping[str, str]) -> str:
    """Return the prefix of the annotations that concern DieselFS."""
    return environment.get(PREFIX_VARIABLE) or PREFIX


def pod_job_name(path: Path, environment: Mapping[str, str]) -> str:
    """Return the name of the job of the pod with this file of annotations; empty if it has none."""
    try:
        annotations = read_fields(path)
    except OSError as error:
        log.warning("cannot read the annotations of this pod: %s: %s", path, error.strerror)
        annotations = {}
    try:
        labels = read_fields(path.with_name(LABELS))
    except OSError:
        labels = {}
    return job_of_pod(annotations, labels, annotation_prefix(environment))


def job_of_pod(annotations: Mapping[str, str], labels: Mapping[str, str], prefix: str) -> str:
    """Return the name of a pod's job: its annotation or label `job`, or what its controller says.

    It is empty for a pod without any. What cannot be a name is logged and passed over.
    """
    for fields, keys in ((annotations, (f"{prefix}job",)), (labels, (f"{prefix}job", *JOB_LABELS))):
        for key in keys:
            name = fields.get(key, "")
            if is_job_name(name):
                return name
            if name:
                log.warning("%s: %r is no name for a job", key, name)
    return ""


def read_fields(path: Path) -> dict[str, str]:
    """Return the annotations or labels in a file of the downward API. Raises `OSError`.

    Lines of another form are skipped.
    """
    with path.open("rb") as file:
        content = file.read(MAX_FILE_BYTES)
    return parse_fields(content.decode(errors="replace"))


def parse_fields(text: str) -> dict[str, str]:
    """Return the fields of lines `key="value"`, quoted as Go's `%q` does."""
    found = map(_LINE.fullmatch, text.split("\n"))
    return {match[1]: _ESCAPE.sub(_unescaped, match[2]) for match in found if match}


def _unescaped(match: re.Match[str]) -> str:
    raw, short, long, letter = match.groups()
    if raw is not None:
        return bytes.fromhex(raw.replace("\\x", "")).decode(errors="replace")
    if letter is not None:
        return _LETTERS.get(letter, letter)
    code = int(short or long, 16)
    return chr(code) if code <= 0x10FFFF and not 0xD800 <= code < 0xE000 else "\ufffd"
