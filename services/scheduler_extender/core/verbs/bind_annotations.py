"""What a Binding carries to its pod: the allocation, and what the node needs to deliver it. Pure."""

from gpuloom.codec.allocation import encode_allocation, visible_devices
from gpuloom.model.allocation import Allocation
from gpuloom.model.gpu import DeviceRef
from gpuloom.model.node import Delivery
from gpuloom.names import (
    ANNOTATION_ALLOCATION,
    ANNOTATION_RESERVATION,
    ANNOTATION_VISIBLE_DEVICES,
    NRI_PLUGIN,
    REQUIRED_PLUGINS_PREFIX,
)
from gpuloom.placement.devices import NodeView


def binding_annotations(allocation: Allocation, view: NodeView, reservation: str = "") -> dict[str, str]:
    """`reservation`: of which the devices are. Raise NotFoundError if a MIG instance of them is gone."""
    annotations = {ANNOTATION_ALLOCATION: encode_allocation(allocation)}
    if reservation:
        annotations[ANNOTATION_RESERVATION] = reservation
    if not allocation.advisory:
        annotations[ANNOTATION_VISIBLE_DEVICES] = visible_devices(allocation, _mig_uuids(view))
        if view.delivery is Delivery.NRI:
            # A runtime that checks it waits for the agent, instead of starting the container without its GPU.
            annotations[REQUIRED_PLUGINS_PREFIX + allocation.container] = f'["{NRI_PLUGIN}"]'
    return annotations


def _mig_uuids(view: NodeView) -> dict[DeviceRef, str]:
    """What the instances are called right now."""
    return {
        DeviceRef(gpu_view.gpu.uuid, instance.placement): instance.uuid
        for gpu_view in view.gpus
        for instance in gpu_view.gpu.mig_instances
    }
