"""Pods as the API server sends them: JSON, of which little is read."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from dieselfs.allocation.kubernetes.pods import Pod


def pod_of(content: Mapping[str, Any]) -> Pod:
    """Return the pod of an object of the API. Raises `ValueError` if it is none."""
    try:
        metadata = content["metadata"]
        return Pod(
            name=str(metadata["name"]),
            uid=str(metadata["uid"]),
            annotations=dict(metadata.get("annotations") or {}),
            labels=dict(metadata.get("labels") or {}),
            phase=str((content.get("status") or {}).get("phase") or "Pending"),
            created_s=_seconds(metadata.get("creationTimestamp")),
            gpus=_gpus(content.get("spec") or {}),
            is_ending=bool(metadata.get("deletionTimestamp")),
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"the API server sent what is no pod: {error!r}") from error


def version_of(content: Mapping[str, Any]) -> str:
    """Return the version of an object or a list; empty if it has none."""
    return str((content.get("metadata") or {}).get("resourceVersion") or "")


def _seconds(text: Any) -> float:
    return datetime.fromisoformat(text).timestamp() if text else 0.0


def _gpus(spec: Mapping[str, Any]) -> int:
    """Return the GPUs of all containers: limits such as `nvidia.com/gpu` or `amd.com/gpu`."""
    limits = [
        (container.get("resources") or {}).get("limits") or {}
        for container in spec.get("containers") or ()
    ]
    return sum(
        int(amount) for each in limits for name, amount in each.items() if name.endswith("/gpu")
    )
