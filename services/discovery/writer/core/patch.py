"""The one patch that makes a node say what its agent says. Pure.

It touches nothing but our own label, annotations, resources and condition. A node that says it all already
needs no patch, whoever wrote it.
"""

from datetime import datetime, timedelta
from typing import Any

from gpuloom.kube.objects import JsonObject, metadata_of
from gpuloom.kube.parse import format_time, quantity_value
from gpuloom.model.gpu import MILLI_PER_GPU, GpuHealth
from gpuloom.model.node import NodeMode
from gpuloom.model.spot import SpotNotice, SpotNoticeKind
from gpuloom.names import (
    ANNOTATION_SPOT_NOTICE,
    ANNOTATION_SPOT_TIME,
    ANNOTATION_SPOT_WARNING,
    CONDITION_GPUS_HEALTHY,
    LABEL_MODE,
    RESOURCE_GPU_MEMORY_MIB,
    RESOURCE_GPU_MILLI,
)
from services.discovery.core.desired import Desired

_RESOURCES = (RESOURCE_GPU_MILLI, RESOURCE_GPU_MEMORY_MIB)
_MAX_MESSAGE = 1024
_UNTOLD_NOTICE = timedelta(seconds=30)


def node_patch(node: JsonObject, desired: Desired, now: datetime) -> JsonObject | None:
    """A merge patch of the node's status subresource, which takes labels and annotations along; or None.

    Lists are replaced whole by such a patch, so it must be sent with the version of the node it was made for.
    """
    metadata, status = metadata_of(node), node.get("status") or {}
    labels = _differences(metadata.get("labels"), {LABEL_MODE: desired.mode.value})
    annotations = _differences(
        metadata.get("annotations"), _spot_annotations(metadata.get("annotations") or {}, desired.spot, now)
    )
    conditions = _conditions(status.get("conditions") or [], desired, now)
    marks = {key: value for key, value in (("labels", labels), ("annotations", annotations)) if value}
    changed: JsonObject = {}
    for field in ("capacity", "allocatable"):
        resources = _resources(status.get(field) or {}, desired)
        if resources:
            changed[field] = resources
    if conditions is not None:
        changed["conditions"] = conditions
    patch = ({"metadata": marks} if marks else {}) | ({"status": changed} if changed else {})
    return patch or None


def _differences(present: JsonObject | None, wanted: dict[str, str | None]) -> dict[str, str | None]:
    """None removes; what is not there needs no removal."""
    return {name: value for name, value in wanted.items() if (present or {}).get(name) != value}


def _spot_annotations(present: JsonObject, notice: SpotNotice | None, now: datetime) -> dict[str, str | None]:
    """A hint is not written: whoever drains nodes would take it for the end. What people wrote stays."""
    ours = ANNOTATION_SPOT_NOTICE in present
    if notice is None or notice.kind is not SpotNoticeKind.INTERRUPTION:
        names = (ANNOTATION_SPOT_NOTICE, ANNOTATION_SPOT_WARNING, ANNOTATION_SPOT_TIME)
        return dict.fromkeys(names) if ours else {}
    said = present.get(ANNOTATION_SPOT_TIME) if ours else None
    # Clouds that do not say when leave half a minute from their notice on.
    time = format_time(notice.time) if notice.time else said or format_time(now + _UNTOLD_NOTICE)
    return {ANNOTATION_SPOT_NOTICE: notice.cloud, ANNOTATION_SPOT_WARNING: "true", ANNOTATION_SPOT_TIME: time}


def _resources(present: JsonObject, desired: Desired) -> dict[str, str | None]:
    """Where a device plugin gives out the GPUs, ours must not be offered beside them.

    A driver that shows no GPU may just be down: what stands is left, and its health says the rest.
    """
    if desired.mode is not NodeMode.GPULOOM:
        return {name: None for name in _RESOURCES if name in present}
    if not desired.gpu_count:
        return {}
    wanted = {
        RESOURCE_GPU_MILLI: MILLI_PER_GPU * desired.gpu_count,
        RESOURCE_GPU_MEMORY_MIB: desired.memory_mib,
    }
    return {name: str(amount) for name, amount in wanted.items() if _amount(present.get(name)) != amount}


def _amount(value: Any) -> int | None:
    try:
        return None if value is None else quantity_value(value)
    except (TypeError, ValueError):
        return None


def _conditions(present: list[JsonObject], desired: Desired, now: datetime) -> list[JsonObject] | None:
    """All conditions with ours in place; None if it is in place."""
    before = next((entry for entry in present if entry.get("type") == CONDITION_GPUS_HEALTHY), {})
    status, reason, message = _health(desired)
    wanted = {"type": CONDITION_GPUS_HEALTHY, "status": status, "reason": reason, "message": message}
    if all(before.get(key) == value for key, value in wanted.items()):
        return None
    time = format_time(now)
    since = before.get("lastTransitionTime") if before.get("status") == status else None
    ours = wanted | {"lastHeartbeatTime": time, "lastTransitionTime": since or time}
    return [*(entry for entry in present if entry.get("type") != CONDITION_GPUS_HEALTHY), ours]


def _health(desired: Desired) -> tuple[str, str, str]:
    """Status, reason and message of the condition; Unknown if nothing is worse than not known."""
    if not desired.gpu_count:
        message = desired.driver_problem or "the driver shows no GPU"
        return "Unknown", "NoGpusShown", message[:_MAX_MESSAGE]
    if desired.healthy:
        return "True", "AllGpusHealthy", "every GPU works as far as its driver can tell"
    message = "; ".join(
        f"GPU {fault.index} ({fault.gpu_uuid}) {fault.health}: {fault.reason}" for fault in desired.faults
    )
    if all(fault.health is GpuHealth.UNKNOWN for fault in desired.faults):
        return "Unknown", "GpuHealthUnknown", message[:_MAX_MESSAGE]
    return "False", "GpusUnhealthy", message[:_MAX_MESSAGE]
