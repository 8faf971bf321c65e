"""The agents with all that they talk to: a Kubernetes API, their kubelets, a reader each.

Every agent is a process of its own; the rest runs in this one.
"""

import asyncio
import os
import random
import shutil
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import orjson
from prometheus_client import CollectorRegistry

from gpuloom.errors import UnavailableError
from gpuloom.rpc.channel import RpcChannel, open_stream
from gpuloom.rpc.dev_ca import CertificateOrder, issue_development_certificates, tls_files
from gpuloom.rpc.environment import RpcEnvironment
from gpuloom.runtime.clock import Clock
from gpuloom.sim.kubeapi import SimKubeApi
from gpuloom.sim.processes.child_process import last_lines
from gpuloom.sim.processes.ports import HOST, free_ports
from gpuloom.sim.processes.supervisor import Supervisor
from gpuloom.v1.node_agent_pb2 import WatchStateRequest
from gpuloom.v1.node_agent_pb2_grpc import NodeAgentServiceStub
from tests.bench.agent.looks import Sample
from tests.bench.agent.node import Ground, Node, Ports
from tests.bench.agent.observation import cpu_s
from tests.bench.agent.variants import Variant
from tests.nvml.library import compile_library

_SERVICES = ("node_agent", "discovery")


class RunningAgent:
    """An agent's process, as it is seen from outside."""

    def __init__(self, node: Node, pid: int) -> None:
        self.variant = node.variant
        self.pid = pid
        self.own_metrics_url = f"http://{HOST}:{node.ports.http}/metrics"
        self.gpu_metrics_url = f"http://{HOST}:{node.ports.exporter}/metrics"
        self.messages_read = 0
        self._node = node

    def glance(self, clock: Clock) -> Sample:
        return Sample(clock.monotonic(), cpu_s(self.pid), self._node.standin.calls())

    def last_words(self) -> str:
        return " | ".join(last_lines(self._node.folder / "agent.log"))

    async def be_read(self, rpc: RpcEnvironment) -> None:
        """Read its state as discovery does, until cancelled."""
        async with RpcChannel(rpc, f"{HOST}:{self._node.ports.grpc}", "node_agent") as channel:
            call = channel.stub(NodeAgentServiceStub).WatchState(WatchStateRequest())
            async with open_stream(call) as messages:
                async for _ in messages:
                    self.messages_read += 1
        raise UnavailableError(f"{self.variant.name} ended its state stream: {self.last_words()}")


@asynccontextmanager
async def open_stage(
    folder: Path, variants: Sequence[Variant], clock: Clock
) -> AsyncIterator[Mapping[Variant, RunningAgent]]:
    """The agents, ready and with a reader each. Raise UnavailableError without a compiler."""
    if shutil.which(os.environ.get("CC", "cc")) is None:
        raise UnavailableError("the stand-in for NVML needs a C compiler; install one, or set CC")
    library = await asyncio.to_thread(compile_library, folder / "library")
    issue_development_certificates(folder, CertificateOrder(_SERVICES), clock)
    ground = Ground(folder, library)
    numbers = iter(free_ports(3 * len(variants), random.Random()))
    nodes = [
        Node(ground, variant, Ports(next(numbers), next(numbers), next(numbers))) for variant in variants
    ]
    rpc = RpcEnvironment(tls_files(folder, "discovery"), CollectorRegistry(), clock)
    async with AsyncExitStack() as stack:
        api = await stack.enter_async_context(SimKubeApi())
        (folder / "kubeconfig").write_bytes(_kubeconfig(api.url))
        for node in nodes:
            node.register(api)
            await stack.enter_async_context(node.kubelet())
        supervisor = await stack.enter_async_context(Supervisor(clock))
        await supervisor.start([[node.agent(clock) for node in nodes]])
        agents = {node.variant: RunningAgent(node, _pid(supervisor, node)) for node in nodes}
        async with asyncio.TaskGroup() as readers:
            reading = [readers.create_task(agent.be_read(rpc)) for agent in agents.values()]
            yield agents
            for task in reading:
                task.cancel()


def _kubeconfig(url: str) -> bytes:
    # JSON is YAML, too.
    return orjson.dumps(
        {
            "current-context": "sim",
            "contexts": [{"name": "sim", "context": {"cluster": "sim", "user": "sim"}}],
            "clusters": [{"name": "sim", "cluster": {"server": url}}],
            "users": [{"name": "sim", "user": {}}],
        }
    )


def _pid(supervisor: Supervisor, node: Node) -> int:
    pid = supervisor.pid(node.variant.name)
    if pid is None:
        raise UnavailableError(f"{node.variant.name} died as soon as it was ready")
    return pid
