"""Running instances as machine directories: one appears when an instance has booted, and ends with it."""

from pathlib import Path

from gpuloom.catalog import Catalog
from gpuloom.sim.cloud.model import Instance, InstanceState, Offering
from gpuloom.sim.machines.hardware import MachineSpec
from gpuloom.sim.machines.machine import MACHINE_FILE, Machine, end_machine

LABEL_CAPACITY_TYPE = "gpuloom.dev/capacity-type"
LABEL_INSTANCE_GROUP = "gpuloom.dev/instance-group"
_RUNS = (InstanceState.RUNNING, InstanceState.SHUTTING_DOWN)


def machine_spec(instance: Instance, offering: Offering, catalog: Catalog) -> MachineSpec:
    kind = catalog.instance(offering.provider, instance.offering.instance_type)
    labels = {LABEL_CAPACITY_TYPE: instance.offering.capacity_type.value}
    if instance.group:
        labels[LABEL_INSTANCE_GROUP] = instance.group
    return MachineSpec(
        node=instance.node,
        mode=instance.mode,
        gpu_model=kind.gpu.name,
        gpu_count=kind.gpu_count,
        topology=kind.shape.name,
        cpu_cores=kind.vcpus,
        memory_gib=kind.memory_gib,
        instance_type=kind.name,
        zone=instance.offering.zone,
        labels=tuple(sorted(labels.items())),
        provider_id=instance.provider_id,
    )


class MachineRoom:
    """Makes the directories match the instances; may be asked again at any time."""

    def __init__(self, directory: Path, catalog: Catalog) -> None:
        self._directory = directory
        self._catalog = catalog

    def follow(self, instances: tuple[Instance, ...], offerings: tuple[Offering, ...]) -> None:
        by_key = {offering.key: offering for offering in offerings}
        for instance in instances:
            directory = self._directory / instance.node
            is_there = (directory / MACHINE_FILE).exists()
            if instance.state in _RUNS and not is_there:
                Machine.create(directory, machine_spec(instance, by_key[instance.offering], self._catalog))
            elif instance.state is InstanceState.TERMINATED and is_there:
                end_machine(directory)
