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
from gpuloom.runtime.parsers import comma_list, existing_file, text
from gpuloom.runtime.service import run_service
from gpuloom.runtime.settings import HttpConfig, LogConfig
from services.node_agent.agent import AgentOptions, Sources, add_agent, open_machine, surround
from services.node_agent.config import Timing
from services.node_agent.exporter.config import ExporterConfig
from services.node_agent.spot.config import SpotConfig


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
        default=REQUIRED,
        parse=comma_list(text),
        help="Names of the nodes whose agents run here",
    )
    agents_file: Path = setting(
        "GPULOOM_AGENTS_FILE",
        default=REQUIRED,
        parse=existing_file,
        help="JSON object of node names and the host:port of their agents",
    )
    timing: Timing = group(Timing)
    exporter: ExporterConfig = group(ExporterConfig)
    spot: SpotConfig = group(SpotConfig)
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
    for name in config.nodes:
        address = addresses.get(name)
        if address is None:
            raise InvalidRequestError(f"{config.agents_file} has no address for node {name}")
        grpc = ServingConfig(host=address.host, port=address.port, tls=config.tls)
        options = AgentOptions(grpc, config.timing, spot=config.spot)
        await add_agent(around, open_machine(config.machines_dir / name, name), options)


if __name__ == "__main__":
    run_service("node_agent", FleetConfig, build)
