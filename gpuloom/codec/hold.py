"""Holds: GPUHold <-> model, and proto <-> model.

A GPUHold that can't be read is not left out: it becomes a hold of all that it may be about, with the problem.
"""

from collections.abc import Mapping
from datetime import UTC
from typing import Any

from gpuloom.codec.custom.claims import gpu_hold, gpu_hold_spec_to_json
from gpuloom.codec.device import allocated_from_proto, allocated_to_proto, bounded, required, shortened
from gpuloom.codec.ledger import time_from_proto, time_to_proto
from gpuloom.errors import InvalidRequestError
from gpuloom.model.allocation import AllocatedDevice
from gpuloom.model.claims import GpuHold, GpuHoldSpec, HoldOwner, HoldTarget
from gpuloom.model.gpu import GPU_UUID, MILLI_PER_GPU, DeviceRef
from gpuloom.model.ledger import Hold
from gpuloom.v1 import scheduler_extender_pb2 as pb

_UNKNOWN_OWNER = HoldOwner("Unknown", "unknown")


def hold_from_object(obj: Mapping[str, Any]) -> Hold:
    """Of a GPUHold as Kubernetes shows it."""
    try:
        return _hold(gpu_hold(obj))
    except InvalidRequestError as error:
        return _unreadable(obj, str(error))


def hold_to_object(hold: Hold) -> dict[str, Any]:
    """The GPUHold to create for it."""
    device = hold.device
    share = device if device is not None and device.device.mig is None else None
    target = HoldTarget(
        node_name=hold.node_name,
        node_uid=hold.node_uid or None,
        gpu_uuid=None if device is None else device.device.gpu_uuid,
        mig=None if device is None else device.device.mig,
        milli=MILLI_PER_GPU if share is None else share.milli,
        memory_mib=None if share is None or share.milli >= MILLI_PER_GPU else share.memory_mib or None,
    )
    spec = GpuHoldSpec(target, hold.owner, hold.reason, hold.expires, hold.taken_by or None)
    return {"metadata": {"name": hold.name}, "spec": _without_nulls(gpu_hold_spec_to_json(spec))}


def hold_to_proto(hold: Hold) -> pb.Hold:
    return pb.Hold(
        name=hold.name,
        node_name=hold.node_name,
        node_uid=hold.node_uid,
        device=None if hold.device is None else allocated_to_proto(hold.device),
        owner=owner_to_proto(hold.owner),
        reason=hold.reason,
        taken_by=hold.taken_by,
        expires_at=None if hold.expires is None else time_to_proto(hold.expires),
        problem=hold.problem,
    )


def hold_from_proto(message: pb.Hold) -> Hold:
    return Hold(
        name=bounded(message.name, "name of a hold"),
        node_name=bounded(message.node_name, "node name"),
        owner=owner_from_proto(message.owner),
        reason=shortened(message.reason),
        node_uid=bounded(message.node_uid, "node UID"),
        device=allocated_from_proto(message.device) if message.HasField("device") else None,
        taken_by=bounded(message.taken_by, "name of a service"),
        expires=time_from_proto(message.expires_at) if message.HasField("expires_at") else None,
        problem=shortened(message.problem),
    )


def owner_to_proto(owner: HoldOwner) -> pb.HoldOwner:
    return pb.HoldOwner(
        kind=owner.kind, namespace=owner.namespace or "", name=owner.name, uid=owner.uid or ""
    )


def owner_from_proto(message: pb.HoldOwner) -> HoldOwner:
    return HoldOwner(
        kind=required(message.kind, "kind of a hold's owner"),
        name=required(message.name, "name of a hold's owner"),
        namespace=bounded(message.namespace, "namespace") or None,
        uid=bounded(message.uid, "UID of a hold's owner") or None,
    )


def _hold(parsed: GpuHold) -> Hold:
    meta, spec, target = parsed.meta, parsed.spec, parsed.spec.target
    device: AllocatedDevice | None = None
    if target.gpu_uuid is not None:
        ref = DeviceRef(target.gpu_uuid, target.mig)
        device = AllocatedDevice(ref, target.milli, target.memory_mib or 0)
    return Hold(
        name=meta.name,
        node_name=target.node_name,
        owner=spec.owner,
        reason=spec.reason,
        node_uid=target.node_uid or "",
        device=device,
        taken_by=spec.taken_by or "",
        expires=None if spec.expires is None else spec.expires.astimezone(UTC),
        uid=meta.uid,
        version=meta.resource_version,
    )


def _unreadable(obj: Mapping[str, Any], problem: str) -> Hold:
    """A GPU or a node that is named counts alone; of what is not named it may be any."""
    metadata, target = _part(obj, "metadata"), _part(_part(obj, "spec"), "target")
    node_name, gpu_uuid = _text(target, "nodeName"), _text(target, "gpuUUID")
    is_gpu = bool(node_name) and GPU_UUID.fullmatch(gpu_uuid) is not None
    return Hold(
        name=_text(metadata, "name"),
        node_name=node_name,
        owner=_UNKNOWN_OWNER,
        reason="",
        device=AllocatedDevice(DeviceRef(gpu_uuid), MILLI_PER_GPU, 0) if is_gpu else None,
        problem=shortened(problem),
        uid=_text(metadata, "uid"),
        version=_text(metadata, "resourceVersion"),
    )


def _part(obj: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = obj.get(key)
    return value if isinstance(value, dict) else {}


def _text(obj: Mapping[str, Any], key: str) -> str:
    value = obj.get(key)
    return value if isinstance(value, str) and len(value) <= 253 else ""


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nulls(item) for key, item in value.items() if item is not None}
    return value
