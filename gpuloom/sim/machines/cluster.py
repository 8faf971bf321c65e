"""Which machines a simulated cluster has: a mixed fleet of types that clouds rent out.

The plan is pure; only `create_machines` touches the disk.
"""

import random
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from gpuloom.catalog import Catalog, InstanceType, load_catalog
from gpuloom.catalog.entries import plain_name
from gpuloom.errors import InvalidRequestError
from gpuloom.model.mig import MigPlacement, MigProfile
from gpuloom.model.node import NodeMode
from gpuloom.sim.machines.hardware import GpuLayout, MachineSpec
from gpuloom.sim.machines.machine import Machine

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


def with_mig_slices(specs: Iterable[MachineSpec]) -> tuple[MachineSpec, ...]:
    """The same machines, every other one of mode nvidia that can be cut with half of its GPUs cut.

    The other half stays whole, as with the mixed strategy of NVIDIA's device plugin: one node offers
    nvidia.com/gpu and several nvidia.com/mig-* side by side.
    """
    catalog = load_catalog()
    cut, found = [], 0
    for spec in specs:
        able = spec.mode is NodeMode.NVIDIA and spec.gpu_count > 1 and catalog.mig_profiles(spec.gpu_model)
        found += bool(able)
        cut.append(replace(spec, mig=_half_cut(spec, catalog)) if able and found % 2 else spec)
    return tuple(cut)


def create_machines(directory: Path, specs: Iterable[MachineSpec]) -> tuple[Machine, ...]:
    """One directory per machine, named like its node."""
    return tuple(Machine.create(directory / spec.node, spec) for spec in specs)


def _half_cut(spec: MachineSpec, catalog: Catalog) -> tuple[GpuLayout | None, ...]:
    profiles = catalog.mig_profiles(spec.gpu_model)
    first = spec.gpu_count // 2
    whole: list[GpuLayout | None] = [None] * first
    layouts = (_small_slices(profiles), _mixed_slices(profiles))
    return (*whole, *(layouts[index % 2] for index in range(spec.gpu_count - first)))


def _small_slices(profiles: Iterable[MigProfile]) -> GpuLayout:
    small = _profile(profiles, 1)
    return tuple(MigPlacement(start, small.name) for start in small.starts)


def _mixed_slices(profiles: Iterable[MigProfile]) -> GpuLayout:
    """One of two compute slices at the start, one of three at the end, small ones between."""
    small, medium, large = (_profile(profiles, compute) for compute in (1, 2, 3))
    between = range(medium.memory_slices, large.starts[-1])
    return (
        MigPlacement(medium.starts[0], medium.name),
        *(MigPlacement(start, small.name) for start in between),
        MigPlacement(large.starts[-1], large.name),
    )


def _profile(profiles: Iterable[MigProfile], compute_slices: int) -> MigProfile:
    """The plainest of that size: the one with the least memory and the shortest name."""
    fitting = (profile for profile in profiles if profile.compute_slices == compute_slices)
    return min(fitting, key=lambda profile: (profile.memory_slices, len(profile.name)))


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
