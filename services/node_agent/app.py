"""Puts the agent of one node together."""

import os

from gpuloom.kube.client import KubeClient
from gpuloom.kube.informer import Informer, InformerOptions
from gpuloom.kube.listing import Selection
from gpuloom.kube.resources import NODES, PODS
from gpuloom.rpc.environment import RpcEnvironment
from gpuloom.runtime.app import App
from services.node_agent.agent import AgentOptions, Surroundings, add_agent, open_machine
from services.node_agent.config import AgentConfig
from services.node_agent.metrics import AgentMetrics


async def build(app: App, config: AgentConfig) -> None:
    machine = open_machine(config.machine_dir, config.node_name)
    rpc = RpcEnvironment(config.tls.files(), app.registry, app.clock)
    client = await app.enter(KubeClient(config.kube.access(os.environ), app.clock, app.registry))
    nodes = Informer(client, NODES, app.clock, _only(f"metadata.name={config.node_name}"))
    pods = Informer(client, PODS, app.clock, _only(f"spec.nodeName={config.node_name}"))
    app.add_loop("nodes", nodes.run)
    app.add_loop("pods", pods.run)
    around = Surroundings(app, rpc, AgentMetrics(app.registry), nodes, pods)
    options = AgentOptions(
        config.grpc_host,
        config.grpc_port,
        config.reflection,
        config.sample_interval_s,
        config.heartbeat_interval_s,
    )
    await add_agent(around, machine, options)


def _only(field_selector: str) -> InformerOptions:
    return InformerOptions(selection=Selection(field_selector=field_selector))
