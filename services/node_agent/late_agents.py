"""Agents of simulated machines that appear while the fleet runs: started with them, ended with them.

Each has a port of its own, which it adds to the agents file for discovery. Only one process of a cluster may
do this. Their GPUs are not shown to Prometheus by this process: its metrics are those it started with.
"""

import asyncio
import logging
import os
from dataclasses import dataclass, replace
from pathlib import Path

import orjson
from prometheus_client import CollectorRegistry

from gpuloom.clients.agents import read_agents_file
from gpuloom.errors import GpuloomError
from gpuloom.kube.informer import Informer
from gpuloom.rpc.environment import RpcEnvironment
from gpuloom.rpc.tls import TlsFiles
from gpuloom.runtime.app import App, Work
from gpuloom.sim.machines.machine import machine_names
from services.node_agent.agent import AgentOptions, Surroundings, add_agent, open_machine
from services.node_agent.exporter.config import ExporterConfig
from services.node_agent.exporter.wiring import NodeExport
from services.node_agent.layout.metrics import LayoutMetrics
from services.node_agent.metrics import AgentMetrics
from services.node_agent.spot.metrics import SpotMetrics
from services.node_agent.usage.metrics import UsageMetrics

FOLLOW_INTERVAL_S = 1.0

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LatePlaces:
    machines_dir: Path
    agents_file: Path


@dataclass(frozen=True, slots=True)
class _Agent:
    app: App
    loops: tuple[asyncio.Task[None], ...]
    address: str

    async def stop(self) -> None:
        for loop in self.loops:
            loop.cancel()
        await asyncio.gather(*self.loops, return_exceptions=True)
        await _close(self.app)


class LateAgents:
    def __init__(
        self,
        around: Surroundings,
        informed_pods: Informer,
        tls: TlsFiles | None,
        places: LatePlaces,
        options: AgentOptions,
    ) -> None:
        self._around = around
        self._informed_pods = informed_pods
        self._tls = tls
        self._places = places
        self._options = options
        self._agents: dict[str, _Agent] = {}

    async def run(self) -> None:
        try:
            while True:
                await self._around.app.clock.sleep(FOLLOW_INTERVAL_S)
                try:
                    await self._follow()
                except (GpuloomError, OSError) as error:
                    _log.warning("machines not followed", extra={"reason": str(error)})
        finally:
            for agent in self._agents.values():
                await agent.stop()

    async def _follow(self) -> None:
        present = machine_names(self._places.machines_dir)
        for name in sorted(self._agents):
            # One whose loop ended is started again in the next round, as its process would be.
            if name not in present or any(loop.done() for loop in self._agents[name].loops):
                await self._agents.pop(name).stop()
                self._tell(name, None)
        listed = read_agents_file(self._places.agents_file)
        for name in sorted(present - listed.keys()):
            self._agents[name] = await self._start(name)
            self._tell(name, self._agents[name].address)

    async def _start(self, name: str) -> _Agent:
        clock, registry = self._around.app.clock, CollectorRegistry()
        app = App("node_agent", clock, registry)
        around = replace(
            self._around,
            app=app,
            rpc=RpcEnvironment(self._tls, registry, clock),
            metrics=AgentMetrics(registry),
            export=NodeExport(app, ExporterConfig(), self._informed_pods, None),
            spot_metrics=SpotMetrics(registry),
            usage_metrics=UsageMetrics(registry),
            layout_metrics=LayoutMetrics(registry),
        )
        machine = open_machine(self._places.machines_dir / name, name)
        try:
            server = await add_agent(around, machine, self._options)
        except BaseException:
            await _close(app)
            raise
        loops = tuple(asyncio.create_task(_run(loop), name=key) for key, loop in app.loops.items())
        return _Agent(app, loops, f"{self._options.grpc.host}:{server.port}")

    def _tell(self, name: str, address: str | None) -> None:
        """Readers see the old file or the new one, never half of one."""
        path = self._places.agents_file
        listed = {node: str(one) for node, one in orjson.loads(path.read_bytes()).items() if node != name}
        if address is not None:
            listed[name] = address
        temporary = path.with_name(f".{path.name}.{os.getpid()}")
        temporary.write_bytes(orjson.dumps(listed, option=orjson.OPT_INDENT_2))
        temporary.replace(path)


async def _run(loop: Work) -> None:
    await loop()


async def _close(app: App) -> None:
    while app.contexts:
        context = app.contexts.pop()
        try:
            await context.__aexit__(None, None, None)
        except GpuloomError as error:
            _log.warning("late agent not closed cleanly", extra={"reason": str(error)})
