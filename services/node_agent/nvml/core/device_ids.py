"""What NVIDIA's device plugin means by its device ids. Pure."""

from collections.abc import Mapping

from gpuloom.model.gpu import DeviceRef
from gpuloom.model.mig import MigInstance

# A GPU that several containers share is given out as replicas: GPU-…::0, GPU-…::1, …
_REPLICA_MARK = "::"


def device_of(device_id: str, instances: Mapping[str, tuple[MigInstance, ...]]) -> DeviceRef:
    """`instances` are those of each GPU by its UUID. An id that is not known is kept, not lost."""
    uuid = device_id.partition(_REPLICA_MARK)[0]
    for gpu_uuid, found in instances.items():
        for instance in found:
            if instance.uuid and instance.uuid == uuid:
                return DeviceRef(gpu_uuid, instance.placement)
    return DeviceRef(uuid)
