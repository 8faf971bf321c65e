"""Times and devices as JSON values. Pure."""

from collections.abc import Iterable
from datetime import datetime
from typing import Any

from gpuloom.model.allocation import AllocatedDevice
from gpuloom.model.node import PodRef

Json = Any


def moment(time: datetime | None) -> str | None:
    return None if time is None else time.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def micro_usd(nano_usd: int) -> int:
    """Exact in a browser up to nine thousand million dollars."""
    return round(nano_usd / 1000)


def pod_fields(pod: PodRef) -> dict[str, Json]:
    return {"namespace": pod.namespace, "pod": pod.name, "uid": pod.uid}


def owner_fields(owner: str) -> Json:
    """Of namespace/name; None if there is nobody."""
    namespace, _, name = owner.partition("/")
    return {"namespace": namespace, "pod": name} if name else None


def devices_json(devices: Iterable[AllocatedDevice]) -> list[Json]:
    return [
        {
            "gpu": given.device.gpu_uuid,
            "milli": given.milli,
            "memory_mib": given.memory_mib,
            "slice": None
            if given.device.mig is None
            else {"start": given.device.mig.start, "profile": given.device.mig.profile},
        }
        for given in devices
    ]
