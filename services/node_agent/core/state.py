"""Puts the node's state together from what driver, kubelet and runtime say. Pure.

Keeps what must not vanish: a GPU once seen stays in the state, as lost if the driver no longer shows it.
"""

from dataclasses import dataclass, replace

from gpuloom.model.gpu import Gpu, GpuHealth, GpuUsage
from gpuloom.model.node import (
    UNTOLD_PRESENCE,
    Delivery,
    Holder,
    NodeMode,
    NodeState,
    PodPresence,
    PodRef,
)
from gpuloom.model.process import GpuProcess
from gpuloom.model.topology import Topology
from services.node_agent.attribution.core.ownership import DeviceOrder, device_order
from services.node_agent.core.readings import DriverReading


@dataclass(frozen=True, slots=True)
class Observation:
    """One sample of the node. A part that could not be read carries its reason instead.

    A problem with processes is none with holders: what was given is known without them.
    """

    node_uid: str
    driver: DriverReading | None
    driver_problem: str
    holders: tuple[Holder, ...]
    holders_problem: str
    processes: tuple[GpuProcess, ...] = ()
    processes_problem: str = ""
    presence: PodPresence = UNTOLD_PRESENCE


def first_state(node_name: str, mode: NodeMode, delivery: Delivery) -> NodeState:
    """The state before the first sample: nothing known, so nothing may be given out."""
    return NodeState(node_name, "", mode, delivery, holders_unknown_reason="the agent has just started")


def next_state(before: NodeState, seen: Observation, with_usage: bool = True) -> NodeState:
    """`with_usage` False: readings that are there already stay, because nobody needs them at every sample."""
    gpus = _gpus(before, seen)
    return replace(
        before,
        node_uid=seen.node_uid or before.node_uid,
        gpus=gpus,
        usage=_usage(gpus, seen.driver, () if with_usage else before.usage),
        topology=_topology(before, seen.driver),
        holders=before.holders if seen.holders_problem else tuple(sorted(seen.holders, key=_holder_order)),
        holders_unknown_reason=seen.holders_problem,
        driver_problem=seen.driver_problem,
        presence=_presence(before.presence, seen.presence),
    )


def _presence(before: PodPresence, seen: PodPresence) -> PodPresence:
    """Pods that can't be looked for stay as they were last known. A list that says the same is not new."""
    if seen.unknown_reason:
        return replace(before, unknown_reason=seen.unknown_reason)
    return before if replace(seen, listed_at_ms=before.listed_at_ms) == before else seen


def _gpus(before: NodeState, seen: Observation) -> tuple[Gpu, ...]:
    if seen.driver is None:
        return tuple(
            replace(gpu, health=GpuHealth.UNKNOWN, health_reason=seen.driver_problem) for gpu in before.gpus
        )
    shown = {gpu.uuid: gpu for gpu in seen.driver.gpus}
    lost = (
        replace(gpu, health=GpuHealth.LOST, health_reason="the driver no longer shows this GPU")
        for gpu in before.gpus
        if gpu.uuid not in shown
    )
    taken = {gpu.index for gpu in shown.values()}
    # A replaced card may sit at the index of the one that is gone; an index is given to one GPU only.
    kept = [gpu for gpu in lost if gpu.index not in taken]
    return tuple(sorted([*shown.values(), *kept], key=lambda gpu: gpu.index))


def _usage(
    gpus: tuple[Gpu, ...], driver: DriverReading | None, kept: tuple[GpuUsage, ...]
) -> tuple[GpuUsage, ...]:
    """One reading per GPU, all unknown where the driver gives none: an old reading is not a new one."""
    shown = {usage.gpu_uuid: usage for usage in driver.usage} if driver is not None else {}
    for usage in kept:
        if usage.gpu_uuid in shown and usage != GpuUsage(usage.gpu_uuid):
            shown[usage.gpu_uuid] = usage
    return tuple(shown.get(uuid, GpuUsage(uuid)) for uuid in sorted(gpu.uuid for gpu in gpus))


def _topology(before: NodeState, driver: DriverReading | None) -> Topology | None:
    return before.topology if driver is None else driver.topology


def _holder_order(holder: Holder) -> tuple[PodRef, str, str, list[DeviceOrder]]:
    return holder.pod, holder.container, holder.source, [device_order(device) for device in holder.devices]
