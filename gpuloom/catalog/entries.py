"""The catalogue's entries and how to look them up. Holds data that was already checked; reads nothing."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from gpuloom.errors import NotFoundError
from gpuloom.model.gpu import MILLI_PER_GPU
from gpuloom.model.mig import MigProfile
from gpuloom.model.topology import Topology
from gpuloom.names import (
    RESOURCE_GPU_MEMORY_MIB,
    RESOURCE_GPU_MILLI,
    RESOURCE_NVIDIA_GPU,
    RESOURCE_NVIDIA_MIG_PREFIX,
)


@dataclass(frozen=True, slots=True)
class GpuModel:
    """A GPU as it is sold. `mig_slices` is its number of memory slices, 0 without MIG."""

    name: str
    family: str
    aliases: tuple[str, ...]
    architecture: str
    memory_mib: int
    power_w: int
    mig_slices: int = 0
    mig_profiles: tuple[MigProfile, ...] = ()


@dataclass(frozen=True, slots=True)
class LinkShape:
    """How the GPUs of a machine are linked. `numa` has the NUMA node of each GPU, None if not known."""

    name: str
    topology: Topology
    numa: tuple[int | None, ...]


@dataclass(frozen=True, slots=True)
class InstanceType:
    """A machine that a cloud rents out."""

    provider: str
    name: str
    gpu: GpuModel
    gpu_count: int
    vcpus: int
    memory_gib: int
    shape: LinkShape


class Catalog:
    """Lookups over checked entries. Names of GPUs ignore case, spaces and punctuation."""

    def __init__(
        self,
        gpus: Iterable[GpuModel],
        shapes: Iterable[LinkShape],
        instances: Iterable[InstanceType],
        architectures: Mapping[str, tuple[str, ...]],
    ) -> None:
        self.gpus = tuple(gpus)
        self.shapes = tuple(shapes)
        self.instances = tuple(instances)
        self.architectures = tuple(architectures)
        self._gpu_by_name = {plain_name(name): gpu for gpu in self.gpus for name in (gpu.name, *gpu.aliases)}
        self._shape_by_name = {shape.name: shape for shape in self.shapes}
        self._instance_by_name = {(entry.provider, entry.name): entry for entry in self.instances}
        self._architecture_by_name = {
            spelling: name for name, others in architectures.items() for spelling in (name, *others)
        }
        self._profile_milli = _profile_milli(self.gpus)
        self._managed_resources = _managed_resources(self.gpus)

    def gpu(self, name_or_alias: str) -> GpuModel:
        """Raise NotFoundError for a name the catalogue lacks."""
        found = self.find_gpu(name_or_alias)
        if found is None:
            raise NotFoundError(f"no GPU model {name_or_alias!r} in the catalogue")
        return found

    def find_gpu(self, name_or_alias: str) -> GpuModel | None:
        return self._gpu_by_name.get(plain_name(name_or_alias))

    def model_names(self, name: str) -> tuple[str, ...]:
        """The models that a model, alias or family name stands for; none if it is not known."""
        found = self.find_gpu(name)
        if found is not None and plain_name(name) != plain_name(found.family):
            return (found.name,)
        return tuple(gpu.name for gpu in self.gpus if plain_name(gpu.family) == plain_name(name))

    def architecture(self, spelling: str) -> str | None:
        """Its name in the catalogue, or None."""
        return self._architecture_by_name.get(plain_name(spelling))

    def mig_profiles(self, model: str) -> tuple[MigProfile, ...]:
        """Empty for a model without MIG; raise NotFoundError for an unknown one."""
        return self.gpu(model).mig_profiles

    def mig_milli(self, profile: str) -> tuple[int, ...]:
        """The thousandths of a GPU that the profile stands for, over all models that have it, ascending."""
        return self._profile_milli.get(profile, ())

    def shape(self, name: str) -> LinkShape:
        """Raise NotFoundError for a name the catalogue lacks."""
        found = self._shape_by_name.get(name)
        if found is None:
            raise NotFoundError(f"no topology {name!r} in the catalogue")
        return found

    def topology(self, name: str) -> Topology:
        """Raise NotFoundError for a name the catalogue lacks."""
        return self.shape(name).topology

    def instance(self, provider: str, name: str) -> InstanceType:
        """Raise NotFoundError for a machine the catalogue lacks."""
        found = self._instance_by_name.get((provider, name))
        if found is None:
            raise NotFoundError(f"no instance type {name!r} of {provider!r} in the catalogue")
        return found

    def managed_resources(self) -> tuple[str, ...]:
        """Every resource name that the extender must be asked about, sorted."""
        return self._managed_resources


def plain_name(name: str) -> str:
    """Two spellings of one name come out equal: "NVIDIA A10G" and "nvidia-a10g"."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


def mig_resource(profile: str) -> str:
    """The name under which NVIDIA's device plugin offers the profile: "+" is not allowed in one."""
    return RESOURCE_NVIDIA_MIG_PREFIX + profile.replace("+", ".")


def slice_milli(slices: int, all_slices: int) -> int:
    """What `slices` of `all_slices` memory slices stand for, in thousandths of a GPU, rounded up."""
    return -(-MILLI_PER_GPU * slices // all_slices)


def _profile_milli(gpus: Iterable[GpuModel]) -> dict[str, tuple[int, ...]]:
    found: dict[str, set[int]] = {}
    for gpu in gpus:
        for profile in gpu.mig_profiles:
            found.setdefault(profile.name, set()).add(slice_milli(profile.memory_slices, gpu.mig_slices))
    return {name: tuple(sorted(milli)) for name, milli in found.items()}


def _managed_resources(gpus: Iterable[GpuModel]) -> tuple[str, ...]:
    slices = {mig_resource(profile.name) for gpu in gpus for profile in gpu.mig_profiles}
    return tuple(sorted({RESOURCE_NVIDIA_GPU, RESOURCE_GPU_MILLI, RESOURCE_GPU_MEMORY_MIB} | slices))
