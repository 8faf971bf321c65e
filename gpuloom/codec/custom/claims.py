"""GPUHold, GPUNodeClaim and GPUReservation."""

import re

from gpuloom.codec.custom.budget import amount, amount_to_json
from gpuloom.codec.custom.objects import conditions, conditions_to_json, opened, selector
from gpuloom.codec.custom.reading import (
    MAX_LABEL,
    MAX_NAME,
    Fields,
    Json,
    each,
    mig_profile,
    moment,
    name,
    one_of,
    part,
    text,
    time_text,
    whole,
)
from gpuloom.codec.custom.workload import MAX_GPUS, MAX_MEMORY_MIB, architecture
from gpuloom.errors import InvalidRequestError
from gpuloom.model.claims import (
    ClaimOffering,
    ClaimState,
    GpuHold,
    GpuHoldSpec,
    GpuHoldStatus,
    GpuNodeClaim,
    GpuNodeClaimSpec,
    GpuNodeClaimStatus,
    GpuReservation,
    GpuReservationSpec,
    GpuReservationStatus,
    HoldOwner,
    HoldTarget,
    ReservationState,
    ReservedRequest,
)
from gpuloom.model.gpu import MILLI_PER_GPU
from gpuloom.model.mig import MigPlacement
from gpuloom.model.objects import LabelSelector
from gpuloom.model.policies import CapacityType

_UID = 128
_TTL = re.compile(r"(?:([0-9]{1,5})h)?(?:([0-9]{1,5})m)?(?:([0-9]{1,7})s)?")


def gpu_hold(obj: object) -> GpuHold:
    meta, spec, status = opened(obj)
    return GpuHold(meta, _hold(spec), GpuHoldStatus(conditions(status)))


def gpu_hold_spec_to_json(spec: GpuHoldSpec) -> Json:
    target, owner = spec.target, spec.owner
    return {
        "target": {
            "nodeName": target.node_name,
            "nodeUID": target.node_uid,
            "gpuUUID": target.gpu_uuid,
            "migProfile": None if target.mig is None else target.mig.profile,
            "migStart": None if target.mig is None else target.mig.start,
            "milli": target.milli if target.milli < MILLI_PER_GPU else None,
            "memoryMib": target.memory_mib,
        },
        "owner": {"kind": owner.kind, "namespace": owner.namespace, "name": owner.name, "uid": owner.uid},
        "reason": spec.reason,
        "expiresAt": time_text(spec.expires),
        "takenBy": spec.taken_by,
    }


def gpu_hold_status_to_json(status: GpuHoldStatus) -> Json:
    return {"conditions": conditions_to_json(status.conditions)}


def gpu_node_claim(obj: object) -> GpuNodeClaim:
    meta, spec, status = opened(obj)
    return GpuNodeClaim(meta, _claim(spec), _claim_status(status))


def gpu_node_claim_spec_to_json(spec: GpuNodeClaimSpec) -> Json:
    offering = spec.offering
    return {
        "policyName": spec.policy_name,
        "poolName": spec.pool_name,
        "offering": {
            "instanceType": offering.instance_type,
            "zone": offering.zone,
            "capacityType": offering.capacity_type,
        },
        "expectedGpus": {"model": spec.gpu_model, "count": spec.gpu_count},
        "token": spec.token,
    }


def gpu_node_claim_status_to_json(status: GpuNodeClaimStatus) -> Json:
    return {
        "state": status.state,
        "nodeName": status.node_name,
        "instanceID": status.instance_id,
        "price": amount_to_json(status.price_nano_usd_per_hour),
        "requestedAt": time_text(status.requested),
        "launchedAt": time_text(status.launched),
        "registeredAt": time_text(status.registered),
        "gpuReadyAt": time_text(status.gpu_ready),
        "drainingAt": time_text(status.draining),
        "goneAt": time_text(status.gone),
        "conditions": conditions_to_json(status.conditions),
    }


def gpu_reservation(obj: object) -> GpuReservation:
    meta, spec, status = opened(obj)
    return GpuReservation(meta, _reservation(spec), _reservation_status(status))


def gpu_reservation_status_to_json(status: GpuReservationStatus) -> Json:
    return {
        "state": status.state,
        "reserved": status.reserved,
        "nodes": list(status.nodes),
        "expires": time_text(status.expires),
    }


def _hold(fields: Fields) -> GpuHoldSpec:
    return GpuHoldSpec(
        target=fields.need("target", part(_target)),
        owner=fields.need("owner", part(_owner)),
        reason=fields.need("reason", name(1024)),
        expires=fields.get("expiresAt", moment),
        taken_by=fields.get("takenBy", text(MAX_LABEL)),
    )


def _target(fields: Fields) -> HoldTarget:
    gpu_uuid = fields.get("gpuUUID", name(_UID))
    profile, start = fields.get("migProfile", mig_profile), fields.get("migStart", whole(0, 63))
    # Read as less than was meant, a hold would give away what it holds; so it is refused.
    if (profile is None) != (start is None) or (profile is not None and gpu_uuid is None):
        raise InvalidRequestError(f"{fields.where}: migProfile and migStart go together, and with gpuUUID")
    milli = fields.get_or("milli", whole(1, MILLI_PER_GPU), MILLI_PER_GPU)
    memory_mib = fields.get("memoryMib", whole(1, MAX_MEMORY_MIB))
    is_share = milli < MILLI_PER_GPU or memory_mib is not None
    if is_share and (gpu_uuid is None or profile is not None):
        raise InvalidRequestError(f"{fields.where}: milli and memoryMib go with gpuUUID, without migProfile")
    return HoldTarget(
        node_name=fields.need("nodeName", name()),
        node_uid=fields.get("nodeUID", text(_UID)),
        gpu_uuid=gpu_uuid,
        mig=None if profile is None or start is None else MigPlacement(profile=profile, start=start),
        milli=milli,
        memory_mib=memory_mib,
    )


def _owner(fields: Fields) -> HoldOwner:
    return HoldOwner(
        kind=fields.need("kind", name(MAX_LABEL)),
        name=fields.need("name", name()),
        namespace=fields.get("namespace", text(MAX_LABEL)),
        uid=fields.get("uid", text(_UID)),
    )


def _claim(fields: Fields) -> GpuNodeClaimSpec:
    gpu_model, gpu_count = fields.need("expectedGpus", part(_expected))
    return GpuNodeClaimSpec(
        policy_name=fields.need("policyName", name()),
        pool_name=fields.need("poolName", name(MAX_LABEL)),
        offering=fields.need("offering", part(_offering)),
        gpu_model=gpu_model,
        gpu_count=gpu_count,
        token=fields.need("token", name(_UID)),
    )


def _expected(fields: Fields) -> tuple[str, int]:
    return fields.need("model", name(MAX_LABEL)), fields.need("count", whole(1, MAX_GPUS))


def _offering(fields: Fields) -> ClaimOffering:
    return ClaimOffering(
        instance_type=fields.need("instanceType", name(MAX_LABEL)),
        capacity_type=fields.need("capacityType", one_of(CapacityType)),
        zone=fields.get("zone", text(MAX_LABEL)),
    )


def _claim_status(fields: Fields) -> GpuNodeClaimStatus:
    return GpuNodeClaimStatus(
        state=fields.get("state", one_of(ClaimState)),
        node_name=fields.get("nodeName", text(MAX_NAME)),
        instance_id=fields.get("instanceID", text(256)),
        price_nano_usd_per_hour=fields.get("price", _price),
        requested=fields.get("requestedAt", moment),
        launched=fields.get("launchedAt", moment),
        registered=fields.get("registeredAt", moment),
        gpu_ready=fields.get("gpuReadyAt", moment),
        draining=fields.get("drainingAt", moment),
        gone=fields.get("goneAt", moment),
        conditions=conditions(fields),
    )


def _price(value: object, where: str) -> int:
    price = amount(value, where)
    if price < 0 or str(value).startswith("-"):
        raise InvalidRequestError(f"{where} must not be negative")
    return price


def _reservation(fields: Fields) -> GpuReservationSpec:
    return GpuReservationSpec(
        request=fields.need("request", part(_request)),
        count=fields.get_or("count", whole(0, 1000), 1),
        start=fields.get("from", moment),
        until=fields.get("until", moment),
        ttl_s=fields.get("ttl", _ttl_s),
        selector=fields.get_or("selector", part(selector), LabelSelector()),
    )


def _request(fields: Fields) -> ReservedRequest:
    return ReservedRequest(
        gpu_count=fields.get_or("gpuCount", whole(1, MAX_GPUS), 1),
        gpu_memory_mib=fields.get("gpuMemoryMib", whole(1, MAX_MEMORY_MIB)),
        gpu_model=fields.get("gpuModel", name(MAX_LABEL)),
        architecture=fields.get("architecture", architecture),
        mig_profile=fields.get("migProfile", mig_profile),
    )


def _ttl_s(value: object, where: str) -> int:
    match = _TTL.fullmatch(text(20, shortest=2)(value, where))
    if match is None:
        raise InvalidRequestError(f"{where} must be a duration such as 2h30m")
    hours, minutes, seconds = (int(digits or 0) for digits in match.groups())
    return hours * 3600 + minutes * 60 + seconds


def _reservation_status(fields: Fields) -> GpuReservationStatus:
    return GpuReservationStatus(
        state=fields.get("state", one_of(ReservationState)),
        reserved=fields.get("reserved", whole(0)),
        nodes=fields.get_or("nodes", each(name(), 1000), ()),
        expires=fields.get("expires", moment),
    )
