"""Which machines a simulated cluster has: a mixed fleet of types that clouds rent out.

The plan is pure; only `create_machines` touches the disk.
"""

import random
from collections.abc import Iterable
from pathlib import Path

from gpuloom.catalog import Catalog, InstanceType, load_catalog
from gpuloom.catalog.entries import plain_name
from gpuloom.errors import InvalidRequestError
from gpuloom.model.node import NodeMode
from gpuloom.sim.hardware import MachineSpec
from gpuloom.sim.machine import Machine

MAX_MACHINES = 5000

# NVSwitch, cube mesh, pairwise bridges, plain PCIe and single cards: every kind of linking is there.
FLEET = (
    ("aws", "p5.48xlarge"),
    ("aws", "p4d.24xlarge"),
    ("aws", "p3.16xlarge"),
    ("azure", "Standard_NC96ads_A100_v4"),
    ("aws", "g6e.12xlarge"),
    ("aws", "g5.48xlarge"),
    ("aws", "g6.xlarge"),
)
_ZONES = ("zone-a", "zone-b", "zone-c")


def plan_machines(count: int, seed: int) -> tuple[MachineSpec, ...]:
    """`count` machines, half of each mode (if odd, one more of either). Equal arguments, equal machines."""
    if not 1 <= count <= MAX_MACHINES:
        raise InvalidRequestError(f"a simulated cluster has 1 to {MAX_MACHINES} machines, not {count}")
    rng = random.Random(f"machines/{seed}")
    types = _types(load_catalog())
    rng.shuffle(types)
    modes = [NodeMode.NVIDIA, NodeMode.GPULOOM]
    rng.shuffle(modes)
    # Seven types and two modes share no factor: every type appears in both modes once there are fourteen.
    return tuple(
        _spec(types[index % len(types)], modes[index % len(modes)], index, seed) for index in range(count)
    )


def create_machines(directory: Path, specs: Iterable[MachineSpec]) -> tuple[Machine, ...]:
    """One directory per machine, named like its node."""
    return tuple(Machine.create(directory / spec.node, spec) for spec in specs)


def _types(catalog: Catalog) -> list[InstanceType]:
    return [catalog.instance(provider, name) for provider, name in FLEET]


def _spec(kind: InstanceType, mode: NodeMode, index: int, seed: int) -> MachineSpec:
    return MachineSpec(
        node=f"{plain_name(kind.gpu.family)}-{index + 1:03d}",
        mode=mode,
        gpu_model=kind.gpu.name,
        gpu_count=kind.gpu_count,
        topology=kind.shape.name,
        cpu_cores=kind.vcpus,
        memory_gib=kind.memory_gib,
        instance_type=kind.name,
        zone=_ZONES[index % len(_ZONES)],
        seed=seed,
    )
