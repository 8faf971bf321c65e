"""A simulated machine as what cuts and shares its GPUs."""

import asyncio
from collections.abc import Callable
from typing import TypeVar

from gpuloom.errors import ConflictError, InvalidRequestError, UnavailableError
from gpuloom.model.gpu import GpuHealth
from gpuloom.model.layout import GpuLayout, LaidInstance, Sharing
from gpuloom.model.mig import MigPlacement
from gpuloom.sim.machines.machine import Machine
from services.node_agent.layout.ports import StepError

T = TypeVar("T")


class SimulatedLayouts:
    """The machine's driver, and what shares its GPUs."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine

    async def read_layout(self, gpu_uuid: str) -> GpuLayout:
        return await _run(lambda: self._read(gpu_uuid))

    async def set_mode(self, gpu_uuid: str, enabled: bool) -> None:
        await _run(lambda: self._machine.layouts.set_mode(gpu_uuid, enabled))

    async def create(self, gpu_uuid: str, placement: MigPlacement) -> None:
        await _run(lambda: self._machine.layouts.create(gpu_uuid, placement))

    async def destroy(self, gpu_uuid: str, placement: MigPlacement) -> None:
        await _run(lambda: self._machine.layouts.destroy(gpu_uuid, placement))

    def _read(self, gpu_uuid: str) -> GpuLayout:
        fault = self._machine.faults().gpus.get(gpu_uuid)
        if fault is not None and fault.health is GpuHealth.LOST:
            raise UnavailableError("the GPU is lost")
        gpu = next((one for one in self._machine.hardware.gpus if one.uuid == gpu_uuid), None)
        if gpu is None:
            raise StepError("no GPU of this machine has that UUID")
        geometry = self._machine.layouts.geometry(gpu_uuid)
        return GpuLayout(
            gpu_uuid=gpu_uuid,
            mig_capable=geometry is not None,
            mig_enabled=gpu.mig_enabled,
            memory_slices=0 if geometry is None else geometry.memory_slices,
            profiles=() if geometry is None else geometry.profiles,
            instances=tuple(LaidInstance(one.placement, one.uuid) for one in gpu.mig_instances),
        )


class SimulatedSharing:
    def __init__(self, machine: Machine) -> None:
        self._machine = machine

    async def read(self, gpu_uuid: str) -> Sharing:
        return await _run(lambda: self._machine.sharing(gpu_uuid))

    async def start(self, gpu_uuid: str, sharing: Sharing) -> None:
        await _run(lambda: self._machine.layouts.share(gpu_uuid, sharing))

    async def stop(self, gpu_uuid: str) -> None:
        await _run(lambda: self._machine.layouts.share(gpu_uuid, Sharing()))

    async def tend(self, clients_of: Callable[[str], tuple[str, ...]]) -> int:
        return 0


class NoDeviceFiles:
    """A simulated kubelet delivers by itself."""

    async def publish(self, layouts: tuple[GpuLayout, ...]) -> None:
        return None


async def _run(work: Callable[[], T]) -> T:
    try:
        return await asyncio.to_thread(work)
    except (ConflictError, InvalidRequestError) as error:
        raise StepError(str(error)) from None
    except OSError as error:
        raise UnavailableError(f"the simulated machine can't be changed: {error}") from error
