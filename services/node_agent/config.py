"""The agent's settings."""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from gpuloom.kube.settings import KubeConfig
from gpuloom.model.node import NodeMode
from gpuloom.rpc.serving import ServingConfig, grpc_group
from gpuloom.runtime.config import REQUIRED, group, setting
from gpuloom.runtime.failpoints import FailpointsConfig, failpoints_group
from gpuloom.runtime.parsers import choice, comma_list, seconds, text
from gpuloom.runtime.settings import HttpConfig, LogConfig
from services.node_agent.core.claims import GPU_DRIVERS
from services.node_agent.delivery.config import DeliveryConfig
from services.node_agent.exporter.config import ExporterConfig
from services.node_agent.layout.config import LayoutConfig
from services.node_agent.layout.executor import FAILPOINTS
from services.node_agent.spot.config import SpotConfig
from services.node_agent.usage.config import UsageConfig


class Driver(StrEnum):
    NVML = "nvml"
    SIMULATED = "simulated"


INTERVALS_A_TTL = 2
KUBELET_SOCKET = Path("/var/lib/kubelet/pod-resources/kubelet.sock")


def _path(raw: str) -> Path:
    return Path(text(raw))


@dataclass(frozen=True)
class Timing:
    sample_interval_s: float = setting(
        "GPULOOM_AGENT_SAMPLE_INTERVAL",
        default=1.0,
        parse=seconds,
        help="How often the node is sampled",
    )
    usage_interval_s: float = setting(
        "GPULOOM_AGENT_USAGE_INTERVAL",
        default=10.0,
        parse=seconds,
        help="How often readers of the state are told what GPUs do; Prometheus is shown every sample",
    )
    heartbeat_interval_s: float = setting(
        "GPULOOM_AGENT_HEARTBEAT_INTERVAL",
        default=5.0,
        parse=seconds,
        help="How long a stream may be silent",
    )
    reader_ttl_s: float = setting(
        "GPULOOM_DISCOVERY_AGENT_TTL",
        default=30.0,
        parse=seconds,
        help="What discovery is set to; only checked against the intervals of this agent",
    )

    def problems(self) -> Iterator[str]:
        most_s = self.reader_ttl_s / INTERVALS_A_TTL
        intervals = {
            "GPULOOM_AGENT_HEARTBEAT_INTERVAL": self.heartbeat_interval_s,
            "GPULOOM_AGENT_SAMPLE_INTERVAL": self.sample_interval_s,
        }
        for name, interval_s in intervals.items():
            if interval_s > most_s:
                yield (
                    f"{name} must be at most {most_s:g}s, not {interval_s:g}s: discovery distrusts a node "
                    f"whose agent is silent for {self.reader_ttl_s:g}s (GPULOOM_DISCOVERY_AGENT_TTL)"
                )


@dataclass(frozen=True)
class AgentConfig:
    node_name: str = setting(
        "GPULOOM_NODE_NAME", default=REQUIRED, parse=text, help="Name of the Kubernetes node this agent is on"
    )
    driver: Driver = setting(
        "GPULOOM_AGENT_DRIVER",
        default=REQUIRED,
        parse=choice(*Driver),
        help="Where GPUs are read from: nvml (NVIDIA's driver) or simulated",
    )
    mode: NodeMode | None = setting(
        "GPULOOM_AGENT_MODE",
        default=None,
        parse=choice(NodeMode.NVIDIA, NodeMode.GPULOOM),
        help="Who gives out this node's GPUs: nvidia (its device plugin) or gpuloom; needed by driver nvml",
    )
    kubelet_socket: Path = setting(
        "GPULOOM_KUBELET_SOCKET",
        default=KUBELET_SOCKET,
        parse=_path,
        help="Socket of the kubelet's PodResources API; used by driver nvml",
    )
    dra_gpu_drivers: tuple[str, ...] = setting(
        "GPULOOM_AGENT_DRA_GPU_DRIVERS",
        default=GPU_DRIVERS,
        parse=comma_list(text),
        help="DRA drivers whose devices are GPUs: while a pod has one, the node is closed. Devices with a "
        "CDI name of class gpu, or with the UUID of a GPU, count whoever gave them. Used by driver nvml",
    )
    proc_dir: Path = setting(
        "GPULOOM_AGENT_PROC_DIR",
        default=Path("/proc"),
        parse=_path,
        help="The host's /proc, where the owners of GPU processes are read; used by driver nvml",
    )
    cgroup_dir: Path = setting(
        "GPULOOM_AGENT_CGROUP_DIR",
        default=Path("/sys/fs/cgroup"),
        parse=_path,
        help="The host's control groups, which show which pods are on the node; used by driver nvml",
    )
    machine_dir: Path | None = setting(
        "GPULOOM_AGENT_MACHINE_DIR",
        default=None,
        parse=_path,
        help="Directory of the simulated machine, which also says in which mode the node is",
    )
    state_dir: Path | None = setting(
        "GPULOOM_AGENT_STATE_DIR",
        default=None,
        parse=_path,
        help="Folder of the host where known GPUs, their open faults and usage windows outlive the agent; "
        "used by driver nvml; without it they are forgotten at every restart",
    )
    timing: Timing = group(Timing)
    grpc: ServingConfig = grpc_group("node_agent")
    delivery: DeliveryConfig = group(DeliveryConfig)
    layout: LayoutConfig = group(LayoutConfig)
    exporter: ExporterConfig = group(ExporterConfig)
    spot: SpotConfig = group(SpotConfig)
    usage: UsageConfig = group(UsageConfig)
    failpoints: FailpointsConfig = failpoints_group("layout-after-journal", *FAILPOINTS)
    kube: KubeConfig = group(KubeConfig)
    log: LogConfig = group(LogConfig)
    http: HttpConfig = group(HttpConfig)

    def problems(self) -> Iterator[str]:
        if self.driver is Driver.NVML and self.mode is None:
            yield "GPULOOM_AGENT_MODE is required by driver nvml: nvidia or gpuloom"
        if self.driver is Driver.SIMULATED and self.machine_dir is None:
            yield "GPULOOM_AGENT_MACHINE_DIR is required by driver simulated: the machine's directory"
        if self.driver is Driver.SIMULATED and self.mode is not None:
            yield "GPULOOM_AGENT_MODE is for driver nvml; a simulated machine says its mode itself"
