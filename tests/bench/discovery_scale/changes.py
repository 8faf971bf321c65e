"""Changes that can be followed from an agent to every reader: faults of GPUs, each with a mark of its own.

The moment a change counts from is the one at which the agent's stream tells of it, as this process hears it.
Discovery hears it on a stream beside this one.
"""

import asyncio
from collections.abc import Iterable, Sequence
from contextlib import AsyncExitStack

from gpuloom.codec.device import gpu_from_proto
from gpuloom.errors import UnavailableError
from gpuloom.model.gpu import Gpu, GpuHealth
from gpuloom.rpc.channel import RpcChannel, open_stream
from gpuloom.rpc.environment import RpcEnvironment
from gpuloom.runtime.clock import Clock
from gpuloom.sim.machines.load import Faults, GpuFault
from gpuloom.sim.machines.machine import Machine
from gpuloom.v1.node_agent_pb2 import WatchStateRequest
from gpuloom.v1.node_agent_pb2_grpc import NodeAgentServiceStub

_MARK = "change-"
_SPACING_S = 0.12
# An agent looks every second; a second change before it has looked would replace the first.
_SPACING_ON_A_MACHINE_S = 2.5


def marks_of(gpus: Iterable[Gpu]) -> list[str]:
    return [gpu.health_reason for gpu in gpus if gpu.health_reason.startswith(_MARK)]


class AgentProbe:
    """Hears one agent, and notes when it told of which change."""

    def __init__(self, rpc: RpcEnvironment, address: str, told_s: dict[str, float]) -> None:
        self._rpc = rpc
        self._address = address
        self._told_s = told_s

    async def listen(self) -> None:
        """Until cancelled. Raise UnavailableError if the agent ends the stream."""
        async with AsyncExitStack() as stack:
            channel = await stack.enter_async_context(RpcChannel(self._rpc, self._address, "node_agent"))
            call = channel.stub(NodeAgentServiceStub).WatchState(WatchStateRequest())
            async for message in await stack.enter_async_context(open_stream(call)):
                now_s = self._rpc.clock.monotonic()
                gpus = message.delta.gpus if message.HasField("delta") else message.full.gpus
                for mark in marks_of(map(gpu_from_proto, gpus)):
                    self._told_s.setdefault(mark, now_s)
        raise UnavailableError(f"the agent at {self._address} ended its stream")


async def make_changes(machines: Sequence[Machine], count: int, clock: Clock) -> None:
    """So many, one machine after the other; every machine is well again afterwards."""
    spacing_s = max(_SPACING_S, _SPACING_ON_A_MACHINE_S / len(machines))
    for number in range(count):
        machine = machines[number % len(machines)]
        gpu = machine.hardware.gpus[number // len(machines) % len(machine.hardware.gpus)]
        fault = GpuFault(GpuHealth.UNHEALTHY, f"{_MARK}{number}")
        await asyncio.to_thread(machine.write_faults, Faults({gpu.uuid: fault}))
        await clock.sleep(spacing_s)
    await clock.sleep(_SPACING_ON_A_MACHINE_S)
    for machine in machines:
        await asyncio.to_thread(machine.write_faults, Faults())
