"""Gangs and reservations: proto <-> model, and the GPUReservation to make."""

from typing import Any

from gpuloom.codec.custom.reading import time_text
from gpuloom.codec.device import bounded, required, shortened
from gpuloom.codec.ledger import time_from_proto, time_to_proto
from gpuloom.errors import InvalidRequestError
from gpuloom.model.planning import GangReport, ReservationReport
from gpuloom.v1 import scheduler_extender_pb2 as pb

MAX_LABELS = 32


def gang_to_proto(gang: GangReport) -> pb.Gang:
    return pb.Gang(
        name=gang.name,
        phase=gang.phase,
        size=gang.size,
        waiting=gang.waiting,
        bound=gang.bound,
        reserved=gang.reserved,
        priority=gang.priority,
        reason=gang.reason,
        nodes=gang.nodes,
        deadline=None if gang.deadline is None else time_to_proto(gang.deadline),
    )


def gang_from_proto(message: pb.Gang) -> GangReport:
    return GangReport(
        name=required(message.name, "name of a gang"),
        phase=required(message.phase, "phase of a gang"),
        size=message.size,
        waiting=message.waiting,
        bound=message.bound,
        reserved=message.reserved,
        priority=message.priority,
        reason=shortened(message.reason),
        nodes=tuple(message.nodes),
        deadline=time_from_proto(message.deadline) if message.HasField("deadline") else None,
    )


def reservation_to_proto(report: ReservationReport) -> pb.Reservation:
    return pb.Reservation(
        namespace=report.namespace,
        name=report.name,
        gpu_count=report.gpu_count,
        gpu_memory_mib=report.gpu_memory_mib,
        gpu_model=report.gpu_model,
        architecture=report.architecture,
        mig_profile=report.mig_profile,
        count=report.count,
        start=None if report.start is None else time_to_proto(report.start),
        end=None if report.end is None else time_to_proto(report.end),
        match_labels=report.match_labels,
        state=report.state,
        reserved=report.reserved,
        nodes=report.nodes,
    )


def reservation_from_proto(message: pb.Reservation) -> ReservationReport:
    if len(message.match_labels) > MAX_LABELS:
        raise InvalidRequestError(f"a reservation selects by at most {MAX_LABELS} labels")
    return ReservationReport(
        namespace=required(message.namespace, "namespace of a reservation"),
        name=required(message.name, "name of a reservation"),
        gpu_count=message.gpu_count,
        count=message.count,
        gpu_memory_mib=message.gpu_memory_mib,
        gpu_model=bounded(message.gpu_model, "GPU model"),
        architecture=bounded(message.architecture, "GPU architecture"),
        mig_profile=bounded(message.mig_profile, "MIG profile"),
        start=time_from_proto(message.start) if message.HasField("start") else None,
        end=time_from_proto(message.end) if message.HasField("end") else None,
        match_labels=dict(message.match_labels),
        state=message.state,
        reserved=message.reserved,
        nodes=tuple(message.nodes),
    )


def reservation_to_object(report: ReservationReport, ttl_s: int) -> dict[str, Any]:
    """The GPUReservation to create for it; the API server checks the rest."""
    if (report.end is None) == (ttl_s == 0):
        raise InvalidRequestError("a reservation needs either an end or a time that it lasts")
    request = {
        "gpuCount": report.gpu_count,
        "gpuMemoryMib": report.gpu_memory_mib or None,
        "gpuModel": report.gpu_model or None,
        "architecture": report.architecture or None,
        "migProfile": report.mig_profile or None,
    }
    spec: dict[str, Any] = {
        "request": {key: value for key, value in request.items() if value is not None},
        "count": report.count,
    }
    if report.start is not None:
        spec["from"] = time_text(report.start)
    if report.end is not None:
        spec["until"] = time_text(report.end)
    else:
        spec["ttl"] = f"{ttl_s // 3600}h{ttl_s % 3600}s"
    if report.match_labels:
        spec["selector"] = {"matchLabels": report.match_labels}
    return {"metadata": {"name": report.name, "namespace": report.namespace}, "spec": spec}
