"""A simulated machine as GPU driver and as container runtime."""

import asyncio

from gpuloom.errors import InvalidRequestError, UnavailableError
from gpuloom.model.node import Holder, HolderSource
from gpuloom.runtime.clock import Clock
from gpuloom.sim.machine import Machine
from services.node_agent.readings import DriverReading


class SimulatedDriver:
    def __init__(self, machine: Machine, clock: Clock) -> None:
        self._machine = machine
        self._clock = clock

    async def read(self) -> DriverReading:
        try:
            readings = await asyncio.to_thread(self._machine.read, self._clock.now())
        except (InvalidRequestError, OSError) as error:
            raise UnavailableError(f"the simulated machine can't be read: {error}") from error
        return DriverReading(readings.gpus, readings.usage, self._machine.hardware.topology)


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
