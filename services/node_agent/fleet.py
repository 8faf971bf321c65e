"""`python -m services.node_agent.fleet`: many agents of simulated nodes in one process.

For large simulated clusters, where a process per node would be mostly interpreters. Each agent has its own
port, certificate check and stream, exactly as alone.
"""

import os
from dataclasses import dataclass
from pathlib import Path

from gpuloom.clients.agents import read_agents_file
from gpuloom.errors import InvalidRequestError
from gpuloom.kube.client import KubeClient
from gpuloom.kube.informer import Informer
from gpuloom.kube.resources import NODES, PODS
from gpuloom.kube.settings import KubeConfig
from gpuloom.rpc.serving import ServingConfig, rpc_environment
from gpuloom.rpc.settings import TlsConfig
from gpuloom.runtime.app import App
from gpuloom.runtime.config import REQUIRED, group, setting
from gpuloom.runtime.parsers import boolean, comma_list, existing_file, text
from gpuloom.runtime.service import run_service
from gpuloom.runtime.settings import HttpConfig, LogConfig
from gpuloom.sim.machines.machine import machine_names
from services.node_agent.agent import AgentOptions, Sources, add_agent, open_machine, surround
from services.node_agent.config import Timing
from services.node_agent.exporter.config import ExporterConfig
from services.node_agent.late_agents import LateAgents, LatePlaces
from services.node_agent.spot.config import SpotConfig
from services.node_agent.usage.config import UsageConfig


@dataclass(frozen=True)
class FleetConfig:
    machines_dir: Path = setting(
        "GPULOOM_FLEET_MACHINES_DIR",
        default=REQUIRED,
        parse=lambda raw: Path(text(raw)),
        help="Directory of the simulated machines, one directory per node",
    )
    nodes: tuple[str, ...] = setting(
        "GPULOOM_FLEET_NODES",
        default=(),
        parse=comma_list(text),
        help="Names of the nodes whose agents run here; default: all of the agents file that have a machine",
    )
    agents_file: Path = setting(
        "GPULOOM_AGENTS_FILE",
        default=REQUIRED,
        parse=existing_file,
        help="JSON object of node names and the host:port of their agents",
    )
    follow: bool = setting(
        "GPULOOM_FLEET_FOLLOW",
        default=False,
        parse=boolean,
        help="Whether machines that appear later get an agent here, listed in the agents file",
    )
    late_host: str = setting(
        "GPULOOM_FLEET_LATE_HOST",
        default="127.0.0.1",
        parse=text,
        help="Name or address of this host by which agents of machines that appear later are listed",
    )
    timing: Timing = group(Timing)
    exporter: ExporterConfig = group(ExporterConfig)
    spot: SpotConfig = group(SpotConfig)
    usage: UsageConfig = group(UsageConfig)
    tls: TlsConfig = group(TlsConfig)
    kube: KubeConfig = group(KubeConfig)
    log: LogConfig = group(LogConfig)
    http: HttpConfig = group(HttpConfig)


async def build(app: App, config: FleetConfig) -> None:
    rpc = rpc_environment(app, config.tls)
    client = await app.enter(KubeClient(config.kube.access(os.environ), app.clock, app.registry))
    nodes, pods = Informer(client, NODES, app.clock), Informer(client, PODS, app.clock)
    sources = Sources(client, nodes, pods)
    around = await surround(app, rpc, sources, config.exporter, simulated=True)
    addresses = read_agents_file(config.agents_file)
    # A machine that its cloud took back while this process was down may still be listed.
    for name in config.nodes or sorted(addresses.keys() & machine_names(config.machines_dir)):
        address = addresses.get(name)
        if address is None:
            raise InvalidRequestError(f"{config.agents_file} has no address for node {name}")
        grpc = ServingConfig(host=address.host, port=address.port, tls=config.tls)
        options = AgentOptions(grpc, config.timing, spot=config.spot, usage=config.usage)
        await add_agent(around, open_machine(config.machines_dir / name, name), options)
    if config.follow:
        grpc = ServingConfig(host=config.late_host, port=0, tls=config.tls)
        options = AgentOptions(grpc, config.timing, spot=config.spot, usage=config.usage)
        places = LatePlaces(config.machines_dir, config.agents_file)
        late = LateAgents(around, pods, config.tls.files(), places, options)
        app.add_loop("late agents", late.run)


if __name__ == "__main__":
    run_service("node_agent", FleetConfig, build)
