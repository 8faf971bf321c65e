"""A simulated machine as GPU driver, as container runtime and as the host of its processes."""

import asyncio
from collections.abc import Iterable, Mapping
from datetime import datetime

from gpuloom.errors import InvalidRequestError, UnavailableError
from gpuloom.model.gpu import GpuHealth
from gpuloom.model.node import Holder, HolderSource, PodPresence
from gpuloom.runtime.clock import Clock
from gpuloom.sim.machines.energy import EnergyMeter
from gpuloom.sim.machines.load import DeviceProcess
from gpuloom.sim.machines.machine import Machine, Readings
from services.node_agent.adapters.simulated_readings import (
    activity_of,
    instances_of,
    last_xids_of,
    sample_of,
    wiring_of,
)
from services.node_agent.core.readings import DriverReading, GpuSample, Process
from services.node_agent.ports import ProcessOwner

DRIVER_VERSION = "simulated"
PROCESS_NAME = "python3"


class SimulatedDriver:
    def __init__(self, machine: Machine, clock: Clock) -> None:
        self._machine = machine
        self._clock = clock
        self._wiring = wiring_of(machine.hardware)
        self._energy = EnergyMeter(machine.directory, clock.now().timestamp())

    async def read(self) -> DriverReading:
        now = self._clock.now()
        readings = await _read(self._machine, now)
        energy_j = await self._count_energy(readings, now)
        return DriverReading(
            gpus=readings.gpus,
            usage=readings.usage,
            topology=self._machine.hardware.topology,
            samples=self._samples(readings, energy_j),
            activity=activity_of(readings),
            instances=instances_of(readings),
            processes=_by_gpu(readings),
            last_xids=last_xids_of(readings),
            xids_heard=frozenset(usage.gpu_uuid for usage in readings.usage),
            wiring=self._wiring,
            driver_version=DRIVER_VERSION,
        )

    async def list_processes(self) -> tuple[tuple[Process, ...], dict[str, str]]:
        readings = await _read(self._machine, self._clock.now())
        lost = {
            gpu.uuid: gpu.health_reason or "the GPU is lost"
            for gpu in readings.gpus
            if gpu.health is GpuHealth.LOST
        }
        return tuple(process for found in _by_gpu(readings).values() for process in found), lost

    async def _count_energy(self, readings: Readings, now: datetime) -> dict[str, float]:
        power_w = {usage.gpu_uuid: usage.power_w or 0.0 for usage in readings.usage}
        try:
            return await asyncio.to_thread(self._energy.count, power_w, now.timestamp())
        except (OSError, KeyError, TypeError, ValueError, AttributeError) as error:
            raise UnavailableError(f"the energy of the simulated machine is not known: {error}") from error

    def _samples(self, readings: Readings, energy_j: Mapping[str, float]) -> dict[str, GpuSample]:
        gpus = {gpu.uuid: gpu for gpu in readings.gpus}
        linked = {wiring.gpu_uuid for wiring in self._wiring if wiring.links}
        return {
            uuid: sample_of(gpus[uuid], usage, energy_j[uuid], uuid in linked)
            for usage in readings.usage
            for uuid in (usage.gpu_uuid,)
        }


class SimulatedRuntime:
    """Containers with their devices, as an NRI plugin would have been told of them."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine

    async def holders(self) -> tuple[Holder, ...]:
        try:
            containers = await asyncio.to_thread(self._machine.containers)
        except (InvalidRequestError, OSError) as error:
            raise UnavailableError(f"the simulated machine can't be read: {error}") from error
        return tuple(
            Holder(
                pod=container.pod,
                container=container.name,
                devices=tuple(allocated.device for allocated in container.devices),
                source=HolderSource.RUNTIME,
            )
            for container in containers
        )


class SimulatedProcessTable:
    """Processes with their pods, as their control groups would tell them."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine

    async def owners(self, pids: Iterable[int]) -> Mapping[int, ProcessOwner]:
        wanted = set(pids)
        if not wanted:
            return {}
        try:
            containers = await asyncio.to_thread(self._machine.containers)
        except (InvalidRequestError, OSError) as error:
            raise UnavailableError(f"the simulated machine can't be read: {error}") from error
        return {
            container.pid: ProcessOwner(PROCESS_NAME, container.pod.uid, container=container.name)
            for container in containers
            if container.pid in wanted
        }


class SimulatedCgroups:
    """Pods on the machine, as their control groups would tell them. It was booted in 1970 and never again."""

    def __init__(self, machine: Machine, clock: Clock) -> None:
        self._machine = machine
        self._clock = clock

    async def presence(self) -> PodPresence:
        try:
            hosted = await asyncio.to_thread(self._machine.hosted)
        except (InvalidRequestError, OSError) as error:
            raise UnavailableError(f"the simulated machine can't be read: {error}") from error
        uids = tuple(sorted(pod.pod.uid for pod in hosted if not pod.exited))
        return PodPresence(uids, listed_at_ms=int(self._clock.now().timestamp() * 1000))


async def _read(machine: Machine, now: datetime) -> Readings:
    try:
        return await asyncio.to_thread(machine.read, now)
    except (InvalidRequestError, OSError) as error:
        raise UnavailableError(f"the simulated machine can't be read: {error}") from error


def _by_gpu(readings: Readings) -> dict[str, tuple[Process, ...]]:
    """A GPU that does not answer is left out."""
    lists: dict[str, tuple[Process, ...]] = {usage.gpu_uuid: () for usage in readings.usage}
    for process in readings.processes:
        lists[process.device.gpu_uuid] += (_process(process),)
    return lists


def _process(process: DeviceProcess) -> Process:
    return Process(process.pid, process.device, process.memory_used_mib, process.sm_ratio)
