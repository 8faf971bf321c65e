"""From what is known of the GPUs to the reading that the sampler gets. Pure."""

from collections.abc import Iterator
from dataclasses import replace

from gpuloom.model.gpu import DeviceRef, Gpu, GpuHealth
from gpuloom.model.topology import Topology
from gpuloom.model.wiring import GpuWiring
from services.node_agent.core.readings import Activity, DriverReading, InstanceReading, Process
from services.node_agent.nvml.core.health import instance_fault
from services.node_agent.nvml.core.topology import WiredGpu, Wiring, topology_of
from services.node_agent.nvml.ledger import Ledger, Memory
from services.node_agent.nvml.processes import ListedProcess
from services.node_agent.nvml.roster import Member
from services.node_agent.nvml.usage import usage_of


def reading_of(ledger: Ledger, driver_version: str, hears_xids: bool = True) -> DriverReading:
    """`hears_xids`: the driver reports errors now, of the cards that have such events."""
    memories = ledger.memories
    members = sorted(ledger.roster.values(), key=lambda member: member.index)
    samples = {uuid: memory.look.sample for uuid, memory in memories.items() if memory.look is not None}
    # Who reads the state is told only what is new; series that are scraped must not come and go.
    fresh = {uuid: sample for uuid, sample in samples.items() if memories[uuid].fresh}
    return DriverReading(
        gpus=tuple(_gpu(member, memories[member.identity.uuid]) for member in members),
        usage=tuple(usage_of(uuid, sample) for uuid, sample in sorted(fresh.items())),
        topology=_topology(ledger, members),
        samples=samples,
        activity=dict(pair for uuid, memory in memories.items() for pair in _activity(uuid, memory)),
        instances=dict(pair for uuid, memory in memories.items() for pair in _instances(uuid, memory)),
        processes={
            uuid: processes_of(uuid, memory, memory.processes)
            for uuid, memory in memories.items()
            if memory.processes is not None
        },
        last_xids={
            DeviceRef(uuid, placement): xid
            for uuid, memory in memories.items()
            for placement, xid in memory.last_xids.items()
        },
        xids_heard=frozenset(
            uuid
            for uuid, memory in memories.items()
            if hears_xids and memory.look is not None and memory.look.known.reports_xids
        ),
        wiring=tuple(_wiring(member, memories[member.identity.uuid]) for member in members),
        driver_version=driver_version,
        products={member.identity.uuid: member.identity.product for member in members},
    )


def processes_of(uuid: str, memory: Memory, listed: tuple[ListedProcess, ...]) -> tuple[Process, ...]:
    """With their devices; one on an instance that is not known is the GPU's."""
    return tuple(
        Process(process.pid, _device(uuid, memory, process.instance), process.memory_mib, process.sm_ratio)
        for process in listed
    )


def _gpu(member: Member, memory: Memory) -> Gpu:
    identity, (health, reason) = member.identity, memory.health
    return Gpu(
        uuid=identity.uuid,
        index=member.index,
        model=identity.model,
        architecture=identity.architecture,
        memory_mib=identity.memory_mib,
        health=health,
        health_reason=reason,
        pci_bus_id=identity.pci_bus_id,
        numa_node=identity.numa_node,
        serial=identity.serial,
        mig_enabled=memory.layout.enabled,
        mig_instances=tuple(
            replace(instance, fault=instance_fault(memory.condition, instance.placement))
            for instance in memory.layout.instances
        ),
    )


def _topology(ledger: Ledger, members: list[Member]) -> Topology | None:
    return topology_of(
        tuple(
            WiredGpu(
                uuid=member.identity.uuid,
                index=member.index,
                pci_bus_id=member.identity.pci_bus_id.upper(),
                wiring=_known_wiring(ledger.memories[member.identity.uuid]),
            )
            for member in members
        )
    )


def _known_wiring(memory: Memory) -> Wiring | None:
    """A lost GPU that nobody has asked since the agent started must not hide how the others are linked."""
    lost = memory.health[0] is GpuHealth.LOST
    return Wiring((), {}) if memory.wiring is None and lost else memory.wiring


def _wiring(member: Member, memory: Memory) -> GpuWiring:
    return GpuWiring(
        gpu_uuid=member.identity.uuid,
        index=member.index,
        pci_bus_id=member.identity.pci_bus_id,
        numa_node=member.identity.numa_node,
        links=() if memory.wiring is None else memory.wiring.links,
    )


def _activity(uuid: str, memory: Memory) -> Iterator[tuple[DeviceRef, Activity]]:
    for number, activity in ({} if memory.look is None else memory.look.activity).items():
        yield _device(uuid, memory, number), activity


def _instances(uuid: str, memory: Memory) -> Iterator[tuple[DeviceRef, InstanceReading]]:
    memories = {} if memory.look is None else memory.look.memories
    for instance, number in zip(memory.layout.instances, memory.layout.ids, strict=True):
        told = memories.get(number)
        used_mib, free_mib = (None, None) if told is None else (told.used_mib, told.free_mib)
        yield DeviceRef(uuid, instance.placement), InstanceReading(number, used_mib, free_mib)


def _device(uuid: str, memory: Memory, number: int | None) -> DeviceRef:
    instance = None if number is None else memory.layout.instance(number)
    return DeviceRef(uuid, None if instance is None else instance.placement)
