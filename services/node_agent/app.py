"""Puts the agent of one node together."""

import os

from gpuloom.catalog import load_catalog
from gpuloom.errors import InvalidRequestError
from gpuloom.kube.client import KubeClient
from gpuloom.kube.informer import Informer, InformerOptions
from gpuloom.kube.listing import Selection
from gpuloom.kube.resources import NODES, PODS
from gpuloom.model.node import Delivery, NodeMode
from gpuloom.rpc.serving import rpc_environment
from gpuloom.runtime.app import App
from services.node_agent.adapters.kubelet import PodResourcesKubelet
from services.node_agent.agent import (
    AgentOptions,
    Parts,
    Sources,
    add_agent,
    add_agent_of,
    open_machine,
    surround,
)
from services.node_agent.attribution.host_cgroups import HostCgroups
from services.node_agent.attribution.host_processes import HostProcesses
from services.node_agent.claims import GpuClaims
from services.node_agent.config import AgentConfig, Driver
from services.node_agent.nvml.driver import NvmlDriver, NvmlOptions

# What a slow GPU said last is shown for so many samples, and for longer than it takes until a call counts as
# hung: the series of a GPU that is only slow must not come and go.
_HELD_SAMPLES = 3
_LEAST_HOLD_S = 12.0
# In mode gpuloom nothing is delivered until the container runtime has taken us as its plugin.
_FIRST_DELIVERY = {NodeMode.NVIDIA: Delivery.DEVICE_PLUGIN, NodeMode.GPULOOM: Delivery.NONE}


async def build(app: App, config: AgentConfig) -> None:
    rpc = rpc_environment(app, config.grpc.tls)
    client = await app.enter(KubeClient(config.kube.access(os.environ), app.clock, app.registry))
    nodes = Informer(client, NODES, app.clock, _only(f"metadata.name={config.node_name}"))
    pods = Informer(client, PODS, app.clock, _only(f"spec.nodeName={config.node_name}"))
    simulated = config.driver is Driver.SIMULATED
    sources = Sources(client, nodes, pods)
    around = await surround(app, rpc, sources, config.exporter, simulated=simulated)
    options = AgentOptions(config.grpc, config.timing, config.delivery, config.spot)
    if config.driver is Driver.NVML:
        await add_agent_of(around, await _nvml_parts(app, config), options)
        return
    if config.machine_dir is None:
        raise InvalidRequestError("a simulated machine needs its directory")
    await add_agent(around, open_machine(config.machine_dir, config.node_name), options)


async def _nvml_parts(app: App, config: AgentConfig) -> Parts:
    if config.mode is None:
        raise InvalidRequestError("the node's mode is not set")
    hold_s = max(_HELD_SAMPLES * config.timing.sample_interval_s, _LEAST_HOLD_S)
    options = NvmlOptions(state_dir=config.state_dir, hold_s=hold_s)
    driver = await app.enter(NvmlDriver(load_catalog(), app.clock, options))
    claims = GpuClaims(driver.device_of_id, driver.uuid_of_minor, frozenset(config.dra_gpu_drivers))
    kubelet = await app.enter(PodResourcesKubelet(config.kubelet_socket, claims))
    processes = HostProcesses(config.proc_dir)
    groups = HostCgroups(config.cgroup_dir)
    delivery = _FIRST_DELIVERY[config.mode]
    return Parts(config.node_name, config.mode, delivery, driver, kubelet, processes, groups)


def _only(field_selector: str) -> InformerOptions:
    return InformerOptions(selection=Selection(field_selector=field_selector))
