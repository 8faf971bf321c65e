"""The agent's settings."""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from gpuloom.kube.settings import KubeConfig
from gpuloom.model.node import NodeMode
from gpuloom.rpc.settings import TlsConfig, grpc_host_setting
from gpuloom.runtime.config import REQUIRED, group, setting
from gpuloom.runtime.parsers import boolean, choice, port, seconds, text
from gpuloom.runtime.settings import HttpConfig, LogConfig
from services.node_agent.delivery.config import DeliveryConfig
from services.node_agent.exporter.config import ExporterConfig
from services.node_agent.spot.config import SpotConfig


class Driver(StrEnum):
    NVML = "nvml"
    SIMULATED = "simulated"


KUBELET_SOCKET = Path("/var/lib/kubelet/pod-resources/kubelet.sock")


def _path(raw: str) -> Path:
    return Path(text(raw))


@dataclass(frozen=True)
class Timing:
    sample_interval_s: float = setting(
        "GPULOOM_AGENT_SAMPLE_INTERVAL",
        default=1.0,
        parse=seconds,
        help="How often the node is looked at",
    )
    usage_interval_s: float = setting(
        "GPULOOM_AGENT_USAGE_INTERVAL",
        default=10.0,
        parse=seconds,
        help="How often readers of the state are told what GPUs do; Prometheus is shown every look",
    )
    heartbeat_interval_s: float = setting(
        "GPULOOM_AGENT_HEARTBEAT_INTERVAL",
        default=5.0,
        parse=seconds,
        help="How long a stream may be silent; keep it well below the reader's TTL of 30s",
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
        help="Folder of the host where known GPUs and their open faults outlive the agent; used by driver "
        "nvml; without it they are forgotten at every restart",
    )
    timing: Timing = group(Timing)
    grpc_host: str = grpc_host_setting()
    grpc_port: int = setting("GPULOOM_GRPC_PORT", default=50052, parse=port, help="Port to serve gRPC on")
    reflection: bool = setting(
        "GPULOOM_GRPC_REFLECTION", default=False, parse=boolean, help="Serve gRPC reflection"
    )
    delivery: DeliveryConfig = group(DeliveryConfig)
    exporter: ExporterConfig = group(ExporterConfig)
    spot: SpotConfig = group(SpotConfig)
    tls: TlsConfig = group(TlsConfig)
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
