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
from gpuloom.runtime.failpoints import Failpoints
from services.node_agent.adapters.kubelet import PodResourcesKubelet
from services.node_agent.agent import (
    JOURNAL,
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
from services.node_agent.config import AgentConfig, Driver
from services.node_agent.core.claims import GpuClaims
from services.node_agent.layout.adapters.device_files import DevicePlaces, NvidiaDeviceFiles
from services.node_agent.layout.adapters.journal_file import JournalFile, MemoryJournal
from services.node_agent.layout.adapters.mps import MpsDaemons, MpsOptions
from services.node_agent.layout.adapters.nvml import NvmlLayoutOptions, NvmlLayouts
from services.node_agent.layout.ports import Reach
from services.node_agent.layout.wiring import LayoutSources
from services.node_agent.nvml.driver import NvmlDriver, NvmlOptions
from services.node_agent.nvml.keeper import BOOT_ID

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
    reach = Failpoints(config.failpoints.points, app.clock).reach
    options = AgentOptions(config.grpc, config.timing, config.delivery, config.spot, config.usage, reach)
    if config.driver is Driver.NVML:
        await add_agent_of(around, await _nvml_parts(app, config, reach), options)
        return
    if config.machine_dir is None:
        raise InvalidRequestError("a simulated machine needs its directory")
    await add_agent(around, open_machine(config.machine_dir, config.node_name), options)


async def _nvml_parts(app: App, config: AgentConfig, reach: Reach) -> Parts:
    if config.mode is None:
        raise InvalidRequestError("the node's mode is not set")
    hold_s = max(_HELD_SAMPLES * config.timing.sample_interval_s, _LEAST_HOLD_S)
    options = NvmlOptions(state_dir=config.state_dir, hold_s=hold_s)
    driver = await app.enter(NvmlDriver(load_catalog(), app.clock, options))
    claims = GpuClaims(driver.device_of_id, driver.uuid_of_minor, frozenset(config.dra_gpu_drivers))
    kubelet = await app.enter(PodResourcesKubelet(config.kubelet_socket, claims))
    processes = HostProcesses(config.proc_dir)
    groups = HostCgroups(config.cgroup_dir)
    return Parts(
        node_name=config.node_name,
        mode=config.mode,
        delivery=_FIRST_DELIVERY[config.mode],
        driver=driver,
        kubelet=kubelet,
        processes=processes,
        groups=groups,
        layouts=_nvml_layouts(app, config, driver, reach),
        state_dir=config.state_dir,
    )


def _nvml_layouts(app: App, config: AgentConfig, driver: NvmlDriver, reach: Reach) -> LayoutSources:
    layout, delivery = config.layout, config.delivery
    proc_dir = layout.driver_proc_dir or config.proc_dir
    places = DevicePlaces(proc_dir, layout.dev_dir, delivery.cdi_folders, delivery.cdi_kind)
    mps = MpsOptions(delivery.mps_dir, layout.mps_control, boot_id=_boot_id)
    journal = MemoryJournal() if config.state_dir is None else JournalFile(config.state_dir / JOURNAL)
    return LayoutSources(
        driver=NvmlLayouts(driver, app.clock, NvmlLayoutOptions(layout.reset_command)),
        sharing=MpsDaemons(driver, app.clock, mps),
        store=journal,
        devices=NvidiaDeviceFiles(driver, places),
        boot_id=_boot_id,
        reach=reach,
        restore_patience_s=layout.restore_patience_s,
    )


def _boot_id() -> str:
    try:
        return BOOT_ID.read_text().strip()
    except OSError:
        return ""


def _only(field_selector: str) -> InformerOptions:
    return InformerOptions(selection=Selection(field_selector=field_selector))
