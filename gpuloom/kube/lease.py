"""A Lease as a record, and who may take it. Pure; `now_s` is always the reader's own monotonic time."""

import math
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from gpuloom.kube.objects import JsonObject, resource_version_of
from gpuloom.kube.resources import LEASES


@dataclass(frozen=True, slots=True)
class LeaseRecord:
    holder: str
    """Empty: released."""
    duration_s: int | None
    acquire_time: str
    renew_time: str
    transitions: int
    resource_version: str = ""


@dataclass(slots=True)
class Observation:
    """When a record was last seen to change. Remote timestamps say nothing: their clock is not ours.

    A lease that somebody deleted counts as changed: its holder works on until it notices.
    """

    resource_version: str = ""
    since_s: float = -math.inf

    def note(self, record: LeaseRecord | None, now_s: float) -> None:
        resource_version = record.resource_version if record is not None else ""
        if resource_version != self.resource_version:
            self.resource_version = resource_version
            self.since_s = now_s

    def expires_s(self, record: LeaseRecord | None, default_duration_s: float) -> float:
        """When the holder will have had its full duration since its last write that we know of."""
        duration_s = record.duration_s if record is not None else None
        return self.since_s + (duration_s or default_duration_s)


def record_from(lease: JsonObject) -> LeaseRecord:
    spec = lease.get("spec")
    spec = spec if isinstance(spec, dict) else {}
    duration_s, transitions = spec.get("leaseDurationSeconds"), spec.get("leaseTransitions")
    return LeaseRecord(
        holder=spec.get("holderIdentity") or "",
        duration_s=duration_s if isinstance(duration_s, int) and duration_s > 0 else None,
        acquire_time=spec.get("acquireTime") or "",
        renew_time=spec.get("renewTime") or "",
        transitions=transitions if isinstance(transitions, int) else 0,
        resource_version=resource_version_of(lease),
    )


def taken(previous: LeaseRecord | None, holder: str, duration_s: int, now: datetime) -> LeaseRecord:
    """The record by which `holder` takes the lease, or keeps it if it is the holder already."""
    renew_time = _time_text(now)
    if previous is None:
        return LeaseRecord(holder, duration_s, renew_time, renew_time, transitions=0)
    if previous.renew_time == renew_time:
        # A write that changes nothing is none to the API server: others would not see us alive.
        renew_time = _time_text(now.replace(microsecond=(now.microsecond + 1) % 1_000_000))
    if previous.holder == holder:
        return replace(previous, duration_s=duration_s, renew_time=renew_time)
    return LeaseRecord(
        holder, duration_s, renew_time, renew_time, previous.transitions + 1, previous.resource_version
    )


def released(record: LeaseRecord) -> LeaseRecord:
    return replace(record, holder="", duration_s=1)


def lease_object(record: LeaseRecord, namespace: str, name: str) -> JsonObject:
    metadata: JsonObject = {"namespace": namespace, "name": name}
    if record.resource_version:
        metadata["resourceVersion"] = record.resource_version
    return {
        "apiVersion": LEASES.api_version,
        "kind": LEASES.kind,
        "metadata": metadata,
        "spec": {
            "holderIdentity": record.holder,
            "leaseDurationSeconds": record.duration_s,
            "acquireTime": record.acquire_time,
            "renewTime": record.renew_time,
            "leaseTransitions": record.transitions,
        },
    }


def _time_text(moment: datetime) -> str:
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
