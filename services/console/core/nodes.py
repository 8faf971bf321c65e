"""A node of discovery's as the page shows it: what it is, who holds what of it, what it does now. Pure."""

from collections import defaultdict
from collections.abc import Mapping
from hashlib import sha256
from typing import Any

from gpuloom.catalog import slice_milli
from gpuloom.model.allocation import AllocatedDevice
from gpuloom.model.gpu import MILLI_PER_GPU, DeviceRef, Gpu, GpuUsage
from gpuloom.model.node import PodRef
from gpuloom.model.snapshot import NodeFacts
from gpuloom.model.topology import PcieLevel, Topology
from services.console.core.texts import moment

Json = Any

POOL_LABELS = (
    "gpu-autoscaler.io/pool",
    "gpuloom.dev/pool",
    "karpenter.sh/nodepool",
    "eks.amazonaws.com/nodegroup",
    "cloud.google.com/gke-nodepool",
    "kubernetes.azure.com/agentpool",
)
"""By which a node says to which pool it belongs; the first that is there counts."""
MEMORY_STEP_MIB = 32
"""Finer changes of memory in use are not worth a redraw."""


def node_item(facts: NodeFacts) -> Json:
    state, place = facts.state, facts.place
    labels = dict(place.labels)
    holders = _holders(facts)
    closed = {gpu.gpu_uuid: gpu.reason for gpu in facts.closed_gpus}
    return {
        "node": state.node_name,
        "mode": state.mode.value,
        "delivery": state.delivery.value,
        "region": place.region,
        "zone": place.zone,
        "rack": place.rack,
        "nvlink_domain": place.nvlink_domain,
        "pool": next((labels[key] for key in POOL_LABELS if labels.get(key)), ""),
        "capacity": place.capacity_type,
        "instance": place.instance_type,
        "unschedulable": place.unschedulable,
        "taints": [f"{taint.key}={taint.value}:{taint.effect}" for taint in place.taints],
        "untrusted": list(facts.untrusted_reasons),
        "details": list(facts.details),
        "driver_problem": state.driver_problem,
        "spot": None
        if state.spot is None
        else {
            "kind": state.spot.kind.value,
            "time": moment(state.spot.time),
            "cloud": state.spot.cloud,
            "action": state.spot.action,
        },
        "topology": "" if state.topology is None else topology_key(state.topology),
        "gpus": [_gpu(gpu, holders[gpu.uuid], closed.get(gpu.uuid, "")) for gpu in state.gpus],
    }


def usage_item(facts: NodeFacts) -> Json:
    """For each GPU [utilisation in %, memory in use in MiB, power in W, temperature in °C]; null: unknown."""
    readings = {reading.gpu_uuid: reading for reading in facts.state.usage}
    return [_reading(readings.get(gpu.uuid)) for gpu in facts.state.gpus]


def topology_key(topology: Topology) -> str:
    """Equal for nodes that are wired alike, so that each wiring is told once."""
    told = (topology.gpu_count, topology.nvswitch, topology.nvlinks, tuple(map(int, topology.pcie)))
    return sha256(repr(told).encode()).hexdigest()[:12]


def topology_item(topology: Topology) -> Json:
    """`pairs` are [a, b, NVLinks, PCIe level] over all a < b."""
    count = topology.gpu_count
    return {
        "gpus": count,
        "nvswitch": topology.nvswitch,
        "pairs": [
            [a, b, topology.nvlink_count(a, b), _level(topology.pcie_level(a, b))]
            for a in range(count)
            for b in range(a + 1, count)
        ],
    }


def _gpu(gpu: Gpu, held: list[Json], closed: str) -> Json:
    return {
        "uuid": gpu.uuid,
        "index": gpu.index,
        "model": gpu.model,
        "memory_mib": gpu.memory_mib,
        "numa": gpu.numa_node,
        "health": gpu.health.value,
        "health_reason": gpu.health_reason,
        "closed": closed,
        "changing": gpu.changing,
        "mig": gpu.mig_enabled,
        "sharing": gpu.sharing.value,
        "slices": [
            {
                "start": one.placement.start,
                "profile": one.placement.profile,
                "slices": one.slices,
                "memory_mib": one.memory_mib,
                "fault": one.fault,
                "changing": one.changing,
            }
            for one in gpu.mig_instances
        ],
        "pods": held,
        "allocated": min(MILLI_PER_GPU, sum(one["milli"] for one in held)),
    }


def _holders(facts: NodeFacts) -> Mapping[str, list[Json]]:
    """Who has which part of each GPU, by UUID.

    An allocation says how much. Of somebody who has none, or only a prediction, what the node sees counts.
    """
    gpus = {gpu.uuid: gpu for gpu in facts.state.gpus}
    seen = {holder.pod.uid for holder in facts.state.holders}
    held = defaultdict[str, list[Json]](list)
    known = set[str]()
    for allocation in facts.allocations:
        if allocation.advisory and allocation.pod.uid in seen:
            continue
        known.add(allocation.pod.uid)
        for given in allocation.devices:
            held[given.device.gpu_uuid].append(
                _holding(
                    allocation.pod, allocation.container, given, "predicted" if allocation.advisory else ""
                )
            )
    for holder in facts.state.holders:
        if holder.pod.uid and holder.pod.uid in known:
            continue
        for device in holder.devices:
            given = _whole(device, gpus.get(device.gpu_uuid))
            held[device.gpu_uuid].append(
                _holding(holder.pod, holder.container, given, f"seen by {holder.source.value}")
            )
    return held


def _holding(pod: PodRef, container: str, given: AllocatedDevice, how: str) -> Json:
    mig = given.device.mig
    return {
        "namespace": pod.namespace,
        "pod": pod.name,
        "uid": pod.uid,
        "container": container,
        "milli": given.milli,
        "memory_mib": given.memory_mib,
        "slice": None if mig is None else {"start": mig.start, "profile": mig.profile},
        "how": how,
    }


def _whole(device: DeviceRef, gpu: Gpu | None) -> AllocatedDevice:
    """What a device that is only seen to be held stands for."""
    if gpu is None:
        return AllocatedDevice(device, MILLI_PER_GPU, 0)
    for one in gpu.mig_instances:
        if one.placement == device.mig:
            slices = sum(each.slices for each in gpu.mig_instances)
            return AllocatedDevice(device, slice_milli(one.slices, max(slices, 8)), one.memory_mib)
    return AllocatedDevice(device, MILLI_PER_GPU, gpu.memory_mib)


def _reading(reading: GpuUsage | None) -> Json:
    if reading is None:
        return [None, None, None, None]
    ratio, used = reading.utilization_ratio, reading.memory_used_mib
    return [
        None if ratio is None else round(ratio * 100),
        None if used is None else round(used / MEMORY_STEP_MIB) * MEMORY_STEP_MIB,
        None if reading.power_w is None else round(reading.power_w / 5) * 5,
        None if reading.temperature_c is None else round(reading.temperature_c),
    ]


def _level(level: PcieLevel) -> str:
    return "" if level is PcieLevel.UNKNOWN else level.name
